"""CUDA devices, and the targets that they run."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from codegen.core.architectures import of_target, parse
from runtime import _native, pytorch
from runtime.pytorch import traced_as_constant

if pytorch.IS_INSTALLED:
    import torch


def why_not_its_kind(is_cuda: bool, device_type: str) -> str | None:
    """Returns why a target's kernels take no tensors of a type of device, or None."""
    if device_type == ("cuda" if is_cuda else "cpu"):
        return None
    return f"runs on {'a CUDA device' if is_cuda else 'the CPU'}"


_found_cuda = False


def _forget_cuda() -> None:
    """Forgets, in a forked process, that CUDA was found: the process may be unable to use its
    parent's devices."""
    global _found_cuda
    _found_cuda = False


os.register_at_fork(after_in_child=_forget_cuda)


def has_cuda() -> bool:
    """Returns whether PyTorch is installed and sees a CUDA device. A device that was seen stays."""
    global _found_cuda
    if not _found_cuda:
        _found_cuda = (
            pytorch.IS_INSTALLED and torch.version.hip is None and torch.cuda.is_available()
        )
    return _found_cuda


def why_no_cuda() -> str | None:
    """Returns why there is no CUDA device to run a kernel on, or None."""
    if has_cuda():
        return None
    unknown = "" if pytorch.IS_INSTALLED else " (without PyTorch none is found)"
    return f"no CUDA device{unknown}"


def count() -> int:
    """Counts the CUDA devices, if there are any."""
    return torch.cuda.device_count()


def capability_of(index: int) -> int:
    """Returns the compute capability of a CUDA device: 90 for 9.0."""
    major, minor = torch.cuda.get_device_capability(index)
    return 10 * major + minor


def indexed(device: torch.device) -> torch.device:
    """Returns a device with its index."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


@traced_as_constant
def compute_capability(device: torch.device) -> int:
    """Returns 86 for a CUDA device of 8.6, and 0 for any other device."""
    return capability_of(indexed(device).index) if device.type == "cuda" else 0


@traced_as_constant
def sm_count(device: torch.device) -> int:
    """Returns the number of a CUDA device's multiprocessors; on the CPU, of PyTorch's threads.

    Specs call it `sm_count`. A compiled graph holds the value of the time when it was traced.
    """
    if device.type == "cuda":
        return facts(indexed(device).index)[0]
    return torch.get_num_threads()


@dataclass(frozen=True)
class Properties:
    """The properties of a CUDA device; memory in bytes."""

    index: int
    name: str
    capability: str  # "9.0"
    multiprocessors: int
    memory: int

    def __str__(self) -> str:
        """Returns ``9.0 (NVIDIA H200), 132 multiprocessors, 139.8 GiB``."""
        return (
            f"{self.capability} ({self.name}), {self.multiprocessors} multiprocessors, "
            f"{self.memory / 2**30:.1f} GiB"
        )


def properties() -> list[Properties]:
    """Returns the CUDA devices of this machine in PyTorch's order; none if PyTorch has no CUDA."""
    if not has_cuda():
        return []
    each = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [
        Properties(i, p.name, f"{p.major}.{p.minor}", p.multi_processor_count, p.total_memory)
        for i, p in enumerate(each)
    ]


@functools.cache
def name(device: torch.device) -> str:
    """Returns a device's name in rows that were tuned: ``NVIDIA H200``; for a CPU its model and
    the number of processors that this process may use."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{processor()}, {len(os.sched_getaffinity(0))} processors"


def processor() -> str:
    """Returns the model of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())


_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97  # a CUdevice_attribute of the driver API


@functools.cache
def facts(index: int) -> tuple[int, int]:
    """Returns `sm_count` and `max_shared_memory` of a CUDA device, as specs call them; memory in
    bytes.

    The driver is asked for the second: only later versions of PyTorch tell it.

    Raises:
        RuntimeError: the driver does not tell.
    """
    properties = torch.cuda.get_device_properties(index)
    driver, device, most = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_int()
    status = driver.cuDeviceGet(ctypes.byref(device), index) or driver.cuDeviceGetAttribute(
        ctypes.byref(most), _MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device
    )
    if status != 0:
        raise RuntimeError(
            f"cuda:{index}: the driver gives error {status} when asked for the shared "
            "memory that a thread block may have"
        )
    return properties.multi_processor_count, most.value


@functools.cache
def describe(index: int) -> str:
    """Describes a CUDA device by compute capability and name: ``9.0 (NVIDIA H200)``."""
    major, minor = torch.cuda.get_device_capability(index)
    return f"{major}.{minor} ({torch.cuda.get_device_name(index)})"


@functools.cache
def why_no_isa(isas: tuple[str, ...]) -> str | None:
    """Returns why this processor runs no CPU kernel of a pack that was compiled for these
    instruction sets, or None if it runs them."""
    here = _native.supported_cpu_isas()
    if any(isa in here for isa in isas):
        return None
    return (
        f"compiled for {', '.join(isas)}, this processor runs {', '.join(here)}; rebuild its pack "
        "in its project, `pip install . -C cmake.define.KERNELMINT_ISAS=all`"
    )


@functools.cache
def why_unsuitable(target: str, index: int) -> str | None:
    """Returns why the CUDA device `index` runs no kernel of a target, however it was compiled,
    or None if it runs them. Arguments as for `why_unavailable`."""
    required = of_target(target)
    assert required is not None, target
    if required.suits(capability_of(index)):
        return None
    return f"needs compute capability {required.devices}, this device is {describe(index)}"


@functools.cache
def why_unavailable(target: str, architectures: tuple[str, ...], index: int) -> str | None:
    """Returns why the CUDA device `index` cannot run a built target, or None if it can.

    Args:
        target: a CUDA target's name, "sm80", "sm90a" or "sm100f".
        architectures: those that its pack was compiled for: "80", "90a".
        index: a CUDA device ordinal.
    """
    if why := why_unsuitable(target, index):
        return why
    required = of_target(target)
    assert required is not None, target
    here = capability_of(index)
    # Packs ship only machine code, which runs on its own major version, from its minor version up.
    compiled = [
        built.capability
        for built in map(parse, architectures)
        if built is not None and required.suits(built.capability)
    ]
    if required.suffix == "a" or any(a // 10 == here // 10 and a <= here for a in compiled):
        return None
    names = ", ".join(f"{a // 10}.{a % 10}" for a in compiled)
    return (
        f"compiled for compute capability {names}, this device is {describe(index)}; rebuild its "
        f"pack in its project, `pip install . -C cmake.define.CMAKE_CUDA_ARCHITECTURES={here}`"
    )


def why_too_large(shared_memory: int, index: int) -> str | None:
    """Returns why the CUDA device `index` cannot launch a kernel whose blocks take so many bytes
    of shared memory, or None if it can."""
    if not shared_memory or shared_memory <= (most := facts(index)[1]):
        return None
    return (
        f"takes {shared_memory:,} bytes of shared memory a thread block, this device has {most:,}: "
        f"{describe(index)}"
    )
