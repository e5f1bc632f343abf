"""Clocks while times were taken, if the machine tells."""

from __future__ import annotations

import ctypes
import functools
import statistics
import threading
from dataclasses import dataclass
from pathlib import Path

import torch

_CPU = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
# nvmlClockType_t and nvmlTemperatureSensors_t of NVML.
_SM, _MEMORY, _GPU_DIE = 1, 2, 0
_PERIOD = 0.02  # seconds between two readings of a watch; NVML's own figures change as often


def read(device: torch.device) -> dict[str, int]:
    """Reads the clocks, of a CPU those of its first processor; {} if they cannot be read."""
    if device.type != "cuda":
        return {"cpu kHz": int(_CPU.read_text())} if _CPU.exists() else {}
    nvml, handle = _nvml(str(torch.cuda.get_device_properties(device).uuid))
    if nvml is None:
        return {}
    value = ctypes.c_uint()
    readings = {}
    for name, function, argument in (
        ("sm MHz", "nvmlDeviceGetClockInfo", (_SM,)),
        ("memory MHz", "nvmlDeviceGetClockInfo", (_MEMORY,)),
        ("degrees", "nvmlDeviceGetTemperature", (_GPU_DIE,)),
        ("milliwatts", "nvmlDeviceGetPowerUsage", ()),
    ):
        if getattr(nvml, function)(handle, *argument, ctypes.byref(value)) == 0:
            readings[name] = value.value
    return readings


@dataclass(frozen=True)
class Spread:
    """The least, median and greatest of some readings."""

    least: float
    median: float
    greatest: float


class Watch:
    """Reads the clocks now and then, in another thread, while its block runs."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._readings: list[dict[str, int]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watch:
        if read(self._device):
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def spreads(self) -> dict[str, Spread]:
        """Returns what was read, by the names of `read`."""
        names = self._readings[0] if self._readings else ()
        readings = {
            name: [reading[name] for reading in self._readings if name in reading] for name in names
        }
        return {
            name: Spread(min(values), statistics.median(values), max(values))
            for name, values in readings.items()
        }

    def _watch(self) -> None:
        while True:
            ended = self._ended.wait(_PERIOD)
            if not ended or not self._readings:
                self._readings.append(read(self._device))
            if ended:
                return


@functools.cache
def _nvml(uuid: str) -> tuple[ctypes.CDLL | None, ctypes.c_void_p]:
    """Returns NVML, or None if the driver has no NVML, and the handle of a GPU."""
    handle = ctypes.c_void_p()
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None, handle
    name = f"GPU-{uuid.removeprefix('GPU-')}".encode()
    status = nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle))
    return (None if status else nvml), handle
