"""The packs of this process, the families that they hold, and kernels that were built singly."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from codegen.core import packs
from codegen.core.packs import Fault, Pack, PackError
from runtime import _native

_SPECS = "kernelmint_specs"  # the package of packs' own Python modules
_FACES = "kernelmint_faces"  # the package of modules that are generated for families


# A lock while families are added: threads add them, and their operators, one after the other.
changing = threading.RLock()


def _new_lock() -> None:
    """Makes the lock anew in a forked process: another thread may have held it, and is gone."""
    global changing
    changing = threading.RLock()


os.register_at_fork(after_in_child=_new_lock)


class _Registry:
    """Usable packs, in the order of their names, and the others."""

    def __init__(self) -> None:
        self.packs: dict[str, Pack] = {}
        self.faults: list[Fault] = []
        self.by_family: dict[str, Pack] = {}
        self.singles: dict[str, dict[str, Pack]] = {}  # packs of single kernels, by family and key
        usable, self.faults = packs.installed()
        for pack in usable:
            if reason := _unusable(pack):
                self.refuse(pack, reason)
            else:
                self.add(pack)

    def refuse(self, pack: Pack, reason: str) -> None:
        self.packs.pop(pack.name, None)
        for family in pack.families:
            self.by_family.pop(family, None)
        self.faults.append(Fault(pack.name, pack.folder, pack.distribution, pack.families, reason))

    def add(self, pack: Pack) -> None:
        self.packs[pack.name] = pack
        self.by_family.update(dict.fromkeys(pack.families, pack))


def _unusable(pack: Pack) -> str | None:
    if pack.abi == _native.abi:
        return None
    remedy = "upgrade kernelmint" if pack.abi > _native.abi else "rebuild the pack, or upgrade it"
    return (
        f"{pack}: built for version {pack.abi} of the ABI of packs, but this runtime has version "
        f"{_native.abi}: {remedy}"
    )


@functools.cache
def _registry() -> _Registry:
    return _Registry()


_listeners: list[Callable[[], None]] = []


def when_changed(forget: Callable[[], None]) -> None:
    """Calls `forget` from now on whenever a pack or a kernel of one is added or taken away."""
    _listeners.append(forget)


def changed() -> None:
    """Calls all listeners: packs have changed."""
    for forget in _listeners:
        forget()


def all_packs() -> list[Pack]:
    """Returns the usable packs."""
    return list(_registry().packs.values())


def faults() -> list[Fault]:
    """Returns the packs that cannot be used, and why."""
    return list(_registry().faults)


def families() -> list[str]:
    """Returns the families of the usable packs."""
    return list(_registry().by_family)


def owner(family: str) -> Pack | None:
    """Returns the pack that holds a family; None if none does.

    Raises PackError if an unusable pack does.
    """
    pack = _registry().by_family.get(family)
    if pack is None:
        for fault in _registry().faults:
            if family in fault.families:
                raise PackError(fault.reason)
    return pack


def of(family: str, key: str | None = None) -> Pack:
    """Returns the pack of a family that is known to be there; with a key, the pack that holds
    that kernel if it was built singly."""
    pack = (single(family, key) if key is not None else None) or owner(family)
    assert pack is not None
    return pack


def readable(folder: str | os.PathLike[str]) -> Pack:
    """Returns the pack in a folder, the same object if it is known; see `loading.load_pack`."""
    path = Path(folder).resolve()
    pack = packs.read(path)
    for other in all_packs():
        if other.folder.resolve() == path:
            return other
    if reason := _unusable(pack):
        raise PackError(reason)
    check_names(pack, str(pack), all_packs())
    if same := _registry().packs.get(pack.name):
        raise PackError(f"{pack}: there is already a {same}: rename one of them")
    return pack


def check_names(pack: Pack, shown: str, others: Iterable[Pack]) -> None:
    """Raises PackError if a family or an operator of a pack, which messages call `shown`, has the
    name of one of other packs."""
    for name, what in pack.names.items():
        for other in others:
            if (there := other.names.get(name)) == what:
                raise PackError(f"{shown}: {what} is already in {other}: rename one of them")
            if there is not None:
                raise PackError(
                    f"{shown}: {what} has the name of {there} in {other}: rename one of them"
                )


def refuse(family: str, reason: str) -> None:
    """Takes a family's pack, which turned out to be damaged, from the usable ones."""
    pack = _registry().by_family.get(family)
    if pack is not None:
        _registry().refuse(pack, reason)
        changed()


def register(pack: Pack) -> None:
    """Adds a pack, or replaces the pack of its name."""
    _registry().add(pack)
    changed()


def add_single(family: str, key: str, pack: Pack) -> None:
    """Adds a kernel that was built singly to its family; it replaces an earlier one of its key."""
    _registry().singles.setdefault(family, {})[key] = pack
    changed()


def single(family: str, key: str) -> Pack | None:
    """Returns the pack of a kernel that was built singly; None if there is none."""
    return by_key(family).get(key)


def by_key(family: str) -> Mapping[str, Pack]:
    """Returns the packs of a family's kernels that were built singly, by key."""
    return _registry().singles.get(family, {})


def singles(family: str) -> tuple[Pack, ...]:
    """Returns the packs of a family's kernels that were built singly."""
    return tuple(by_key(family).values())


def changed_sources(pack: Pack, project: Path, below: str = "") -> list[str]:
    """Returns the sources of a project that are not what a pack was built of.

    Only sources whose path begins with `below` are read.
    """
    return [
        name
        for name, digest in pack.sources.items()
        if name.startswith(below) and _digest(f"{project}/{name}") != digest
    ]


def _digest(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return None


def first_of(changed: list[str], project: Path) -> str:
    """Names sources of a project for messages: the first, and how many more there are."""
    more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    return f"{project / changed[0]}{more}"


@functools.cache
def _warn_of_changes(pack: Pack) -> None:
    """Warns if the specs of an editable install changed since its libraries were built."""
    for name, folder in pack.specs.items():
        if not folder.is_dir() or folder.is_relative_to(pack.folder):
            continue
        if changed := changed_sources(pack, folder.parent, f"{name}/"):
            warnings.warn(
                f"{pack}: {first_of(changed, folder.parent)} changed since it was built: its "
                f"kernels are those from before; run `pip install -e {folder.parent}`",
                RuntimeWarning,
                stacklevel=2,
            )


@functools.cache
def _library(path: Path, architectures: tuple[str, ...]) -> _native.Library:
    return _native.Library(path, architectures)


@functools.cache
def library(pack: Pack, family: str) -> _native.Library:
    """Returns the loaded library of a family. Raises PackError if it is not the one that
    pack.json and manifest.json describe."""
    path = pack.library(family)
    try:
        loaded = _library(path, pack.architectures)
    except PackError as error:
        advice = "" if pack.distribution is None else ": reinstall it"
        raise PackError(f"{pack}: {error}{advice}") from None
    if loaded.build != pack.fingerprint:
        raise PackError(
            f"{pack}: {path} is of the build {loaded.build} (its sources, compilers and flags), "
            f"but {pack.folder / packs.PACK_JSON} is of {pack.fingerprint}: reinstall it"
        )
    if loaded.generated != pack.generated[family]:
        raise PackError(
            f"{pack}: {path} was built from the generated code {loaded.generated}, but "
            f"{pack.folder / packs.PACK_JSON} names {pack.generated[family]}: reinstall it"
        )
    _warn_of_changes(pack)
    return loaded


def face(pack: Pack, family: str) -> Any:
    """Returns the class of a family's kernels, which was generated for it."""
    return _of_face(of(family) if pack.slice_name else pack, family, "KERNEL_CLASS")


def generated_front(family: str) -> Any:
    """Returns the front that the generated function of a family calls."""
    return _of_face(of(family), family, "_front")


@functools.cache
def _of_face(pack: Pack, family: str, name: str) -> Any:
    path = pack.face(family)
    try:
        return getattr(_face(pack, family), name)
    except (OSError, SyntaxError, AttributeError) as error:
        raise PackError(
            f"{pack}: {path} is damaged ({type(error).__name__}: {error}): reinstall it"
        ) from None


@functools.cache
def _face(pack: Pack, family: str) -> ModuleType:
    return _module_at(f"{_FACES}.{pack.name}.{family}", pack.face(family))


def _module_at(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pickle and torch.compile look names up here
    spec.loader.exec_module(module)
    return module


def specs_module(pack: Pack, module: str) -> ModuleType:
    """Returns a Python module of a pack's specs, such as "kernel_specs.attention.front".

    Modules of one pack import each other relatively; packs do not see each other's.
    """
    _package(_SPECS, None)
    root = f"{_SPECS}.{pack.name}"
    _package(root, None)
    for name, folder in pack.specs.items():
        _package(f"{root}.{name}", folder)
    return importlib.import_module(f"{root}.{module}")


def specs_function(pack: Pack, module: str, name: str) -> Any:
    """Returns a function of such a module."""
    return getattr(specs_module(pack, module), name)


def _package(name: str, folder: Path | None) -> None:
    if name in sys.modules:
        return
    spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [] if folder is None else [str(folder)]
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)


def fronts() -> Iterator[tuple[Pack, packs.Front]]:
    """Yields the public functions of all usable packs' families."""
    for pack in all_packs():
        for front in pack.fronts:
            yield pack, front


class NoFrontError(LookupError):
    """The error for a name that no family's function has."""


def front(name: str) -> Any:
    """Returns the public function of a family, by its name. Raises AttributeError if several
    have it, LookupError if none does."""
    candidates = [(pack, front) for pack, front in fronts() if front.function == name]
    if not candidates:
        raise NoFrontError(name)
    if len(candidates) > 1:
        raise AttributeError(
            f"several families have a function {name}: "
            f"{', '.join(f'{front.family} of {pack}' for pack, front in candidates)}"
        )
    ((pack, only),) = candidates
    if not only.module:  # generated, in the family's face
        return _public(_of_face(pack, only.family, name), name)
    return _public(specs_function(pack, only.module, name), name)


def _public(function: Any, name: str) -> Any:
    """Marks a front as kernelmint's: pickle, and help, name it as its callers do, and another
    process has none of the modules that it is loaded from."""
    if isinstance(function, FunctionType) and function.__qualname__ == name:
        loaded = function.__module__.partition(".")[0] in (_SPECS, _FACES)
        function.__module__ = "kernelmint" if loaded else function.__module__
    return function
