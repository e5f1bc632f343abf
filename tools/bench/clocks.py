"""The clocks that times were taken at, if the machine tells."""

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
    """The clocks now, of a CPU those of its first processor; nothing if they cannot be read."""
    if device.type != "cuda":
        return {"cpu kHz": int(_CPU.read_text())} if _CPU.exists() else {}
    nvml, handle = _nvml(str(torch.cuda.get_device_properties(device).uuid))
    if nvml is None:
        return {}
    value = ctypes.c_uint()
    found = {}
    for name, function, argument in (
        ("sm MHz", "nvmlDeviceGetClockInfo", (_SM,)),
        ("memory MHz", "nvmlDeviceGetClockInfo", (_MEMORY,)),
        ("degrees", "nvmlDeviceGetTemperature", (_GPU_DIE,)),
        ("milliwatts", "nvmlDeviceGetPowerUsage", ()),
    ):
        if getattr(nvml, function)(handle, *argument, ctypes.byref(value)) == 0:
            found[name] = value.value
    return found


@dataclass(frozen=True)
class Spread:
    """What was read over a while."""

    least: float
    median: float
    greatest: float


class Watch:
    """Reads the clocks now and then, from a thread of its own, while its block runs."""

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
        """What was read, by name, as `read` names it; nothing if nothing can be."""
        names = self._readings[0] if self._readings else ()
        found = {
            name: [reading[name] for reading in self._readings if name in reading] for name in names
        }
        return {
            name: Spread(min(values), statistics.median(values), max(values))
            for name, values in found.items()
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
    """NVML, and its handle of a GPU; None if the driver brings none."""
    handle = ctypes.c_void_p()
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None, handle
    name = f"GPU-{uuid.removeprefix('GPU-')}".encode()
    status = nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle))
    return (None if status else nvml), handle
