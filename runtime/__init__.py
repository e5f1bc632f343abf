"""Kernelmint's runtime: call any built kernel by its key.

    import runtime

    runtime.kernels("flash_forward")                  # what there is
    runtime.kernel("flash_forward.cpu.f32-d64-r64-c128")(q, k, v)
    runtime.attention(q, k, v, causal=True)           # picks the kernel

docs/runtime.md has the whole of it.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    importlib.import_module("runtime._native")
except ModuleNotFoundError as _error:
    if _error.name != "runtime._native":
        raise
    # A checkout's own folder, which shadows the installed package: its extension will do.
    __path__.append(importlib.import_module("runtime.extension").installed_beside(__path__[0]))

from runtime import catalog as _catalog
from runtime import manifest as _manifest
from runtime import operators as _operators
from runtime.catalog import KernelInfo, families, kernels, targets
from runtime.dispatch import attention, forward, forward_timed
from runtime.errors import InvalidArgument, KernelNotFound, TargetUnavailable
from runtime.kernel import Kernel

if TYPE_CHECKING:
    from runtime.block_sparse import block_sparse_attention, hstu_attention_with_bsa

if len(__path__) > 1:
    _manifest.check_checkout(Path(__file__).resolve().parent)

# The submodule runtime.kernel bears the same name; the function is the public one.
kernel = _catalog.kernel

for _family in _manifest.load().families.values():
    _operators.register(_family, _catalog.generated(_family.name).OPERATOR, kernel)

__all__ = [
    "InvalidArgument",
    "Kernel",
    "KernelInfo",
    "KernelNotFound",
    "TargetUnavailable",
    "attention",
    "block_sparse_attention",
    "families",
    "forward",
    "forward_timed",
    "hstu_attention_with_bsa",
    "kernel",
    "kernels",
    "targets",
]


def __getattr__(name: str) -> Any:
    # On first use: a build may do without these families, and an import should not wait for them.
    if name in ("block_sparse_attention", "hstu_attention_with_bsa"):
        return getattr(importlib.import_module("runtime.block_sparse"), name)
    raise AttributeError(f"module 'runtime' has no attribute {name!r}")
