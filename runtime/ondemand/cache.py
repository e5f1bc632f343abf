"""The cache of what was built on demand: packs, found by the content of all that they are made of.

    <folder>/1/direct/<hash>.json   which files a request of this hash depended on, by name
    <folder>/1/packs/<hash>/        packs, by the hashes of the request and those files
    <folder>/1/system.json          hashes of the system's headers, by their path, size and time
    <folder>/1/answers/<hash>.json  what compilers answered, by their path, size and time
    <folder>/1/locks/<hash>         held while a request is built: others wait, then find its pack
    <folder>/1/tmp/<random>/        of builds that run; a killed one's is removed by the next
    <folder>/1/failed/<hash>/       the last failed build of a request: its log and how to repeat it

A request's hash covers specs, codegen, flags and the compiler's identity. The files of the second
step are what the compiler says that it read. Names in them are relative to the roots that a request
has (its specs, Kernelmint's headers, a CUDA toolkit), and no time counts, so that the folder can be
copied, shared and shipped. A pack appears by one rename, whole or not at all.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import functools
import hashlib
import json
import os
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from codegen.packs import RECORD
from runtime.errors import BuildError

_FORMAT = "1"
_FULL = (errno.ENOSPC, errno.EDQUOT)


def default_folder() -> Path:
    """KERNELMINT_CACHE_DIR, else kernelmint below XDG_CACHE_HOME, else ~/.cache/kernelmint."""
    if named := os.environ.get("KERNELMINT_CACHE_DIR"):
        return Path(named).absolute()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base).absolute() / "kernelmint"
    return Path(os.path.expanduser("~")) / ".cache/kernelmint"


_Stamp = tuple[int, int, int]
_hashes: dict[str, tuple[_Stamp, str]] = {}


def content(path: str | Path, known: Mapping[str, Sequence[Any]] = MappingProxyType({})) -> str:
    """The hash of a file's content; empty where it cannot be read. A file is read again where its
    size or time has changed since this process read it, or since its hash was `known`."""
    path = str(path)
    try:
        status = os.stat(path)
        stamp = status.st_mtime_ns, status.st_size, status.st_ino
        found = _hashes.get(path)
        if found is None and path in known:
            *before, value = known[path]
            found = (int(before[0]), int(before[1]), int(before[2])), str(value)
        if found is None or found[0] != stamp:
            with open(path, "rb") as file:
                found = stamp, hashlib.sha256(file.read()).hexdigest()
        _hashes[path] = found
    except OSError:
        return ""
    return found[1]


def digest(value: object) -> str:
    """The hash of plain data."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]


def is_system(name: str) -> bool:
    """Whether a name is of a file that came with a compiler, or elsewhere from the system."""
    return name.startswith((":", "toolkit:"))


@dataclass(frozen=True)
class Roots:
    """The folders that names of files are relative to, so that they may lie anywhere."""

    folders: Mapping[str, Path]

    def name(self, path: str) -> str:
        """A file's name: `root:path` below the deepest of the roots, else `:path`."""
        path = os.path.normpath(path)
        below = [
            (name, folder)
            for name, folder in self.folders.items()
            if path.startswith(f"{folder}{os.sep}")
        ]
        if not below:
            return f":{path}"
        name, folder = max(below, key=lambda entry: len(str(entry[1])))
        return f"{name}:{os.path.relpath(path, folder)}"

    def path(self, name: str) -> Path:
        """The file of a name."""
        root, _, path = name.partition(":")
        return self.folders[root] / path if root in self.folders else Path(path)


@dataclass(frozen=True)
class Entry:
    """A pack of the cache: its folder, and the names of the files that it depends on."""

    folder: Path
    names: tuple[str, ...]


@dataclass(frozen=True)
class Usage:
    """What `kernelmint cache` shows of a pack."""

    folder: Path
    size: int  # bytes
    used: float  # when it was last used, in seconds since the epoch


class Cache:
    """A cache in a folder, which need not exist."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._root = folder / _FORMAT

    def find(self, request: str, roots: Roots) -> Entry | None:
        """The pack of a request, for the contents that its files have now."""
        for names in self._dependencies(request):
            folder = self._root / "packs" / self.identify(request, names, roots)
            if (folder / RECORD).is_file():
                with contextlib.suppress(OSError):  # a cache that is shipped may be read-only
                    os.utime(folder)
                return Entry(folder, names)
        return None

    def _dependencies(self, request: str) -> list[tuple[str, ...]]:
        """What builds of the request depended on, the last one first."""
        try:
            lists = json.loads((self._root / "direct" / f"{request}.json").read_bytes())
            return [tuple(map(str, names)) for names in lists]
        except (OSError, ValueError, TypeError):
            return []

    @contextlib.contextmanager
    def locked(self, requests: Iterable[str]) -> Iterator[None]:
        """Waits until no other process, and no other thread, builds one of the requests."""
        with contextlib.ExitStack() as held:
            for request in sorted(set(requests)):  # one order: nobody waits in a circle
                held.enter_context(_locked(self._root / "locks" / request))
            yield

    @contextlib.contextmanager
    def work(self) -> Iterator[tuple[Path, int]]:
        """A folder for a build, and the descriptor of its lock, for the compilers to inherit: what
        a killed process leaves is removed when the last of its compilers has ended."""
        parent = self._root / "tmp"
        parent.mkdir(parents=True, exist_ok=True)
        self._sweep(parent)
        folder = Path(tempfile.mkdtemp(dir=parent))
        lock = os.open(folder, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_SH)
        try:
            yield folder, lock
        finally:
            os.close(lock)
            shutil.rmtree(folder, ignore_errors=True)

    def _sweep(self, parent: Path) -> None:
        for folder in parent.iterdir():
            with contextlib.suppress(OSError):
                if time.time() - folder.stat().st_mtime < 60:
                    continue  # may have been made just now, and not be locked yet
                lock = os.open(folder, os.O_RDONLY)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(lock)

    def identify(self, request: str, names: Sequence[str], roots: Roots) -> str:
        """The name that a pack of these dependencies, as they are now, has in the cache."""
        paths = [str(roots.path(name)) for name in names]
        hashes = [content(path, self._system) for path in paths]
        return digest([request, [*zip(names, hashes, strict=True)]])

    @functools.cached_property
    def _system(self) -> Mapping[str, Sequence[Any]]:
        """What is known of headers that come with compilers: hundreds, and nobody edits them."""
        try:
            return dict(json.loads((self._root / "system.json").read_bytes()))
        except (OSError, ValueError, TypeError):
            return {}

    def _remember(self, names: Sequence[str], roots: Roots) -> None:
        """Notes the hashes of the system's headers that a build read."""
        paths = [str(roots.path(name)) for name in names if is_system(name)]
        found = {path: [*_hashes[path][0], _hashes[path][1]] for path in paths if path in _hashes}
        if any(self._system.get(path) != entry for path, entry in found.items()):
            self._write_json("system.json", {**self._system, **found})

    def _write_json(self, name: str, value: object) -> None:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.part")
        partial.write_text(json.dumps(value))
        partial.replace(path)

    def noted(self, question: str) -> Any:
        """The answer that was noted to a question, a hash; None where there is none."""
        try:
            return json.loads((self._root / "answers" / f"{question}.json").read_bytes())
        except (OSError, ValueError):
            return None

    def note(self, question: str, answer: object) -> None:
        """Notes an answer, plain data, where the cache can be written."""
        with contextlib.suppress(OSError):
            self._write_json(f"answers/{question}.json", answer)

    def publish(
        self, request: str, names: Sequence[str], roots: Roots, pack: str, made: Path
    ) -> Entry:
        """Moves a finished pack into the cache. The request is locked."""
        folder = self._root / "packs" / pack
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            made.rename(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            if not (folder / RECORD).is_file():  # not one that a rename made
                shutil.rmtree(folder)
                made.rename(folder)
        lists = [tuple(names), *(known for known in self._dependencies(request) if known != names)]
        self._write_json(f"direct/{request}.json", lists[:16])
        self._remember(names, roots)
        return Entry(folder, tuple(names))

    def keep_failed(self, request: str, work: Path) -> Path:
        """Keeps the folder of a build that failed, in place of an earlier one's."""
        folder = self._root / "failed" / request
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        return work.rename(folder)

    def discard(self, entry: Entry) -> None:
        """Removes a pack that turned out to be damaged."""
        with _locked(self._root / "locks" / entry.folder.name):
            shutil.rmtree(entry.folder, ignore_errors=True)

    def packs(self) -> list[Usage]:
        """All packs, the last used first."""
        found = []
        for record in (self._root / "packs").glob(f"*/{RECORD}"):
            with contextlib.suppress(OSError):
                files = [path for path in record.parent.rglob("*") if path.is_file()]
                size = sum(path.stat().st_size for path in files)
                found.append(Usage(record.parent, size, record.parent.stat().st_mtime))
        return sorted(found, key=lambda usage: -usage.used)

    def prune(self, most_bytes: int, oldest: float) -> list[Usage]:
        """Removes packs last used before `oldest`, then the longest unused ones until the others
        have no more than `most_bytes`; and every failed build. Returns the packs removed."""
        kept, removed = 0, []
        for usage in self.packs():
            kept += usage.size
            if kept > most_bytes or usage.used < oldest:
                kept -= usage.size
                # Out of sight by one step, whoever finds packs meanwhile.
                with self.work() as (work, _), contextlib.suppress(FileNotFoundError):
                    usage.folder.rename(work / usage.folder.name)
                    removed.append(usage)
        shutil.rmtree(self._root / "failed", ignore_errors=True)
        return removed

    def writable(self) -> Cache:
        """This cache, or one of this process alone where this one cannot be written: it is said."""
        try:
            with self.work():
                return self
        except OSError as error:
            return _private(self.folder, error.strerror or str(error))


@functools.cache
def _private(instead_of: Path, reason: str) -> Cache:
    folder = Path(tempfile.mkdtemp(prefix="kernelmint-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    warnings.warn(
        f"the cache {instead_of} cannot be written ({reason}): what is built now lies in {folder} "
        "and ends with this process; KERNELMINT_CACHE_DIR names another folder",
        RuntimeWarning,
        stacklevel=2,
    )
    return Cache(folder)


@contextlib.contextmanager
def reported(cache: Cache, what: str) -> Iterator[None]:
    """What the file system refuses while something is built, as a BuildError."""
    try:
        yield
    except OSError as error:
        free = "free some (`kernelmint cache --prune 0`), or " if error.errno in _FULL else ""
        raise BuildError(
            f"{what}: {error.filename or cache.folder}: {error.strerror or error}: {free}name "
            "another folder in KERNELMINT_CACHE_DIR"
        ) from None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
