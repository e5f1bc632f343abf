"""The import of `runtime` and `codegen`, which lie beside this package under names that others
use."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

HOME = Path(__file__).resolve().parents[1]
ROOMS = ("codegen", "runtime")


def imported(name: str) -> ModuleType:
    """Returns one of ROOMS, or one of their modules, or of `kernelmint.tools`.

    Raises:
        ImportError: another module has the name of a room, or the room cannot be imported; with
            what to do.
    """
    for room in ROOMS:
        check(room)
    return importlib.import_module(name)


def check(room: str) -> None:
    """Raises ImportError, naming the file, if `import room` finds another module of that name."""
    file = _origin(room)
    if file is None:
        raise ImportError(
            f"kernelmint's {room} is not in {HOME}, where it belongs: install kernelmint again"
        )
    if HOME / room not in (file, *file.parents):
        raise ImportError(
            f"`import {room}` finds {file}, not kernelmint's {room}, which is {HOME / room}: "
            f"rename {file.name}, or run where its folder is not on Python's path (`python -c` "
            f"and `python -m` put the current folder there)"
        )


def _origin(room: str) -> Path | None:
    """Returns the file or folder that an import of that name takes."""
    module = sys.modules.get(room)
    if module is not None:
        file = getattr(module, "__file__", None)
        paths = list(getattr(module, "__path__", ()))
    else:
        spec = importlib.util.find_spec(room)
        file = spec.origin if spec and spec.has_location else None
        paths = list(spec.submodule_search_locations or ()) if spec else []
    origin = file or next(iter(paths), None)
    return Path(origin).resolve() if origin else None
