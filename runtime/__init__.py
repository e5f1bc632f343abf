"""Kernelmint's runtime: call any built kernel by its key.

    import runtime

    runtime.kernels("flash_forward")                  # what there is
    runtime.kernel("flash_forward.cpu.f32-d64-r64-c128")(q, k, v)
    runtime.attention(q, k, v, causal=True)           # picks the kernel

Without PyTorch, kernels can be listed and built, not called. docs/runtime.md says more.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from runtime import pytorch as _pytorch

try:
    importlib.import_module("runtime._native")
except ModuleNotFoundError as _error:
    if _error.name != "runtime._native":
        raise
    # A checkout's own folder, which shadows the installed package: its extension will do.
    __path__.append(importlib.import_module("runtime.extension").installed_beside(__path__[0]))

from runtime import manifest as _manifest
from runtime import packs as _packs
from runtime.errors import (
    BuildError,
    InvalidArgument,
    KernelNotFound,
    PackError,
    TargetUnavailable,
)
from runtime.kernel_info import KernelInfo
from runtime.listing import families, kernels, targets
from runtime.loading import build, load, load_pack
from runtime.loading import offer as _offer

if _pytorch.IS_INSTALLED:
    from runtime.devices import sm_count
    from runtime.finding import explain, kernel
    from runtime.front import Front, explain_call
    from runtime.handle import Kernel
    from runtime.pytorch import traced_as_constant

if len(__path__) > 1:
    _manifest.check_checkout(Path(__file__).resolve().parent)

for _pack in _packs.all_packs():
    try:
        _offer(_pack)
    except PackError as _damage:
        _packs.refuse(_pack.families[0], str(_damage))

__all__ = [
    "BuildError",
    "Front",
    "InvalidArgument",
    "Kernel",
    "KernelInfo",
    "KernelNotFound",
    "PackError",
    "TargetUnavailable",
    "build",
    "explain",
    "explain_call",
    "families",
    "kernel",
    "kernels",
    "load",
    "load_pack",
    "sm_count",
    "targets",
    "traced_as_constant",
    *sorted({front.function for _, front in _packs.fronts()}),
]


def __getattr__(name: str) -> Any:
    """Returns a family's front, imported when it is first asked for."""
    if name in __all__ and not _pytorch.IS_INSTALLED:
        raise _pytorch.missing()
    try:
        function = _packs.front(name)
    except _packs.NoFrontError:
        unusable = "".join(f"; {fault.reason}" for fault in _packs.faults()[:1])
        raise AttributeError(f"module 'runtime' has no attribute {name!r}{unusable}") from None
    globals()[name] = function
    return function


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
