"""The clocks that times were taken at, where the machine tells."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch

_CPU = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
# nvmlClockType_t and nvmlTemperatureSensors_t of NVML.
_SM, _MEMORY, _GPU_DIE = 1, 2, 0


def read(device: torch.device) -> dict[str, int]:
    """The clocks now, of a CPU those of its first processor; nothing where they cannot be read."""
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


@functools.cache
def _nvml(uuid: str) -> tuple[ctypes.CDLL | None, ctypes.c_void_p]:
    """NVML, and its handle of a GPU; None where the driver brings none."""
    handle = ctypes.c_void_p()
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None, handle
    name = f"GPU-{uuid.removeprefix('GPU-')}".encode()
    status = nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle))
    return (None if status else nvml), handle
