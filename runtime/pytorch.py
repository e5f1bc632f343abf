"""PyTorch, which calling kernels takes; listing and building them does not."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])

try:
    importlib.import_module("torch")
except ModuleNotFoundError as _error:
    if _error.name != "torch":
        raise
    IS_INSTALLED = False
else:
    IS_INSTALLED = True


def missing() -> ModuleNotFoundError:
    """Returns the error for calls of kernels, with the command that installs PyTorch."""
    return ModuleNotFoundError(
        "runtime calls kernels on PyTorch tensors, and PyTorch is not installed: "
        'run `pip install "kernelmint[torch]"`',
        name="torch",
    )


def traced_as_constant(function: _Function) -> _Function:
    """Marks a function, which torch.compile then calls instead of tracing into it.

    This is what torch.compiler.assume_constant_result does, without its import of torch._dynamo,
    which takes as long as that of torch.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]  # PyTorch's own marker
    return function
