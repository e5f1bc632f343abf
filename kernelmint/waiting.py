"""`torch.ops.kernelmint` in a process that has imported kernelmint and called none of its
functions.

Importing kernelmint must take neither PyTorch nor the time of importing runtime, which registers
the operators. So the first look-up of an operator registers them: in torch.ops, as
torch.export.load and torch.fx do, and where torch._inductor loads packages, which asks PyTorch's
dispatcher itself.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

from kernelmint import rooms

_NAMESPACE = "kernelmint"


def begin() -> None:
    """Makes the first look-up of the operators register them, once PyTorch is imported."""
    if "runtime.operators" in sys.modules:
        return
    when_imported = _when_imported().when_imported
    when_imported("torch", _stand_in)
    when_imported("torch._inductor.package", register)


def register() -> None:
    """Registers the operators now. Raises ModuleNotFoundError without PyTorch."""
    rooms.imported("runtime")
    pytorch: Any = rooms.imported("runtime.pytorch")
    if not pytorch.IS_INSTALLED:
        raise pytorch.missing()


def _when_imported() -> ModuleType:
    """Returns the module of runtime, without runtime."""
    path = rooms.HOME / "runtime/when_imported.py"
    spec = importlib.util.spec_from_file_location("kernelmint._when_imported", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _stand_in() -> None:
    """Puts a namespace into torch.ops that registers its operators when one is asked for."""
    torch: Any = sys.modules["torch"]

    class Waiting(torch._ops._OpNamespace):  # type: ignore[misc]  # a class of any type
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):  # import and inspect look these up
                return super().__getattr__(name)
            register()
            if vars(torch.ops).get(_NAMESPACE) is self:
                delattr(torch.ops, _NAMESPACE)  # PyTorch makes its own then
            return getattr(getattr(torch.ops, _NAMESPACE), name)

    setattr(torch.ops, _NAMESPACE, Waiting(_NAMESPACE))
