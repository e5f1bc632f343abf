"""Calls that wait for another's import: they register with a module of PyTorch that is slow to
import and that most programs never import. kernelmint also loads this file by itself: it imports
nothing that takes long."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

_waiting: dict[str, list[Callable[[], None]]] = {}


def when_imported(module: str, call: Callable[[], None]) -> None:
    """Calls a function once a module is imported: now, if it is imported already."""
    if module in sys.modules:
        call()
        return
    _waiting.setdefault(module, []).append(call)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


class _Finder:
    """A finder that finds modules as others do, and adds the calls to their loaders."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in _waiting:
            return None
        others = (f for f in sys.meta_path if f is not self and hasattr(f, "find_spec"))
        spec = next((s for f in others if (s := f.find_spec(name, path, target))), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for call in _waiting.pop(name, ()):
                call()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # only of this module
        return spec


_finder = _Finder()
