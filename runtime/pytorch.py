"""Whether PyTorch is installed: calling kernels takes it; listing and building them does not."""

from __future__ import annotations

import importlib

try:
    importlib.import_module("torch")
except ModuleNotFoundError as _error:
    if _error.name != "torch":
        raise
    IS_INSTALLED = False
else:
    IS_INSTALLED = True


def missing() -> ModuleNotFoundError:
    """The error of what calls kernels, with the command that installs PyTorch."""
    return ModuleNotFoundError(
        "runtime calls kernels on PyTorch tensors, and PyTorch is not installed: "
        'run `pip install "kernelmint[torch]"`',
        name="torch",
    )
