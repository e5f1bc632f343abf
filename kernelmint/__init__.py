"""Kernelmint: kernels from specs, called by key.

    import kernelmint

    kernelmint.attention(q, k, v, causal=True)        # picks the kernel
    kernelmint.kernel("flash_forward.cpu.f32-d64-r64-c128")(q, k, v)

It has every public name of `runtime`, which is imported at the first use of a public name or of an
operator of `torch.ops.kernelmint`: importing kernelmint takes no PyTorch, so a build can do it. The
command is `kernelmint`.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

from kernelmint import rooms, waiting

_HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if os.path.isfile(os.path.join(_HOME, "CMakeLists.txt")):
    __path__.append(_HOME)  # a checkout: kernelmint.tools is the folder tools/ beside this one

waiting.begin()


def register_operators() -> None:
    """Registers the operators of `torch.ops.kernelmint` with PyTorch.

    Code that looks operators up in torch.ops need not call it. Other look-ups need it, in a process
    that has called nothing of kernelmint: torch.jit.load, and C++ that loads models.

    Raises:
        ModuleNotFoundError: PyTorch is not installed.
    """
    waiting.register()


def __getattr__(name: str) -> Any:
    """Returns a public name of runtime, or the version."""
    if name == "__version__":
        value = importlib.import_module("importlib.metadata").version("kernelmint")
    elif name == "__all__" or _may_be_public(name):
        value = _of_runtime(name)
    else:
        raise AttributeError(f"module 'kernelmint' has no attribute {name!r}")
    globals()[name] = value
    return value


def _of_runtime(name: str) -> Any:
    runtime = rooms.imported("runtime")
    if name == "__all__" or name in runtime.__all__:
        return getattr(runtime, name)
    packs = rooms.imported("runtime.packs")
    try:
        return packs.front(name)  # a front of a family that was loaded later
    except packs.NoFrontError:
        raise AttributeError(f"module 'kernelmint' has no attribute {name!r}") from None


def _may_be_public(name: str) -> bool:
    """Returns whether to look into runtime: not for names that import or inspect look up, nor for a
    module."""
    if name.startswith("_"):
        return False
    spec = importlib.util.find_spec(f"kernelmint.{name}")
    return (
        spec is None or spec.origin is None
    )  # a folder without Python, such as a checkout's build


def __dir__() -> list[str]:
    return sorted({*globals(), "__version__", *rooms.imported("runtime").__all__})
