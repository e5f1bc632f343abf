"""The cache of kernels that were built on demand: packs, found by the content of all their sources.

    <folder>/1/direct/<hash>.json   dependencies of a request of this hash, by name
    <folder>/1/packs/<hash>/        packs, by the hashes of the request and its dependencies
    <folder>/1/system.json          hashes of the system's files, by their path, size and times
    <folder>/1/answers/<hash>.json  answers of compilers, by their path, size and time
    <folder>/1/locks/<hash>         held while a request is built: others wait, then find its pack
    <folder>/1/tmp/<random>/        builds that run; the next build removes that of a killed one
    <folder>/1/failed/<hash>/       the last failed build of a request: its log and how to repeat it

A request's hash covers specs, codegen, flags and the compiler's identity. The dependencies are the
files that the compiler and the linker say they read. Beside the contents of these, the names count
that were looked for and have appeared in, or gone from, the folders that were searched. Names are
relative to the roots of a request (its specs, Kernelmint's headers, a CUDA toolkit), and no time
counts, so that the folder can be copied, shared and shipped. A pack appears by one rename, whole or
not at all, with the hashes of its files: a damaged pack is not found.
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
import stat
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from codegen.core import trust
from codegen.core.packs import PACK_JSON
from runtime.errors import BuildError

_FORMAT = "1"
_FULL = (errno.ENOSPC, errno.EDQUOT)


_hashes: dict[str, list[Any]] = {}  # by path: size, times and inode, and the hash of that content
SETTLED = 2_000_000_000  # nanoseconds: file systems' clocks tick, some of them once in two seconds


def contents(
    paths: Iterable[str], earlier: Mapping[str, Sequence[Any]] = MappingProxyType({})
) -> list[str]:
    """Returns the hashes of files' contents; "" for a file that cannot be read.

    A file is not read again while its size, inode and times are those that this process saw, or
    that `earlier` has. The time of its last change of any kind is one of them, which no program
    sets. A file that changed just now may change again within one tick of that clock, so it is read
    again. A kernel has hundreds of files: those that did not change take no call each.
    """
    values = []
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            values.append("")
            continue
        stamp = [status.st_ctime_ns, status.st_mtime_ns, status.st_size, status.st_ino]
        for kept in (_hashes.get(path), earlier.get(path)):
            if kept is not None and kept[:-1] == stamp:
                _hashes[path] = list(kept)
                values.append(str(kept[-1]))
                break
        else:
            values.append(_read_hash(path, status, stamp))
    return values


def _read_hash(path: str, status: os.stat_result, stamp: list[Any]) -> str:
    if not stat.S_ISREG(status.st_mode):
        return ""
    now = time.time_ns()
    try:
        with open(path, "rb") as file:
            value = hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""
    if now - status.st_ctime_ns > SETTLED:
        _hashes[path] = [*stamp, value]
    return value


def content(path: str | Path) -> str:
    """Returns the hash of a file's content; "" if it cannot be read."""
    return contents([str(path)])[0]


def digest(value: object) -> str:
    """Returns the hash of plain data."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]


def is_system(name: str) -> bool:
    """Returns whether a name is of a file that came with a compiler, or elsewhere from the
    system."""
    return name.startswith((":", "toolkit:"))


def _read_json(path: Path) -> Any:
    """Reads a file of the cache; returns None if it is absent or damaged."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def texts(value: object) -> tuple[str, ...]:
    """Returns a list of texts as a tuple. Raises TypeError for anything else."""
    if not isinstance(value, list) or not {str}.issuperset(map(type, value)):
        raise TypeError
    return tuple(value)


@dataclass(frozen=True)
class Roots:
    """The folders that names of files are relative to, so that they may lie anywhere."""

    folders: Mapping[str, Path]

    def name(self, path: str) -> str:
        """Returns a file's name: `root:path` below the deepest of the roots, else `:path`."""
        path = os.path.normpath(path)
        below = [
            (name, folder)
            for name, folder in self.folders.items()
            if f"{path}{os.sep}".startswith(f"{folder}{os.sep}")
        ]
        if not below:
            return f":{path}"
        name, folder = max(below, key=lambda entry: len(str(entry[1])))
        return f"{name}:{os.path.relpath(path, folder)}"

    def paths(self, names: Iterable[str]) -> list[str]:
        """Returns the files of names."""
        folders = {root: f"{folder}{os.sep}" for root, folder in self.folders.items()}
        parts = [name.partition(":") for name in names]
        return [f"{folders.get(root, '')}{path}" for root, _, path in parts]


@dataclass(frozen=True)
class Dependencies:
    """The dependencies of a pack, by names as `Roots` gives them.

    Attributes:
        files: the files whose content counts; some were looked for and are absent.
        folders: the folders in which files were looked for.
        sought: names of files and folders: those that lie in one of `folders` count.
    """

    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    sought: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """A pack of the cache: its folder, and its dependencies."""

    folder: Path
    dependencies: Dependencies


@dataclass(frozen=True)
class Usage:
    """A pack in the cache, as `kernelmint cache` shows it."""

    folder: Path
    size: int  # bytes
    used: float  # the time of its last use, in seconds since the epoch


class Cache:
    """A cache in a folder, which need not exist."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._root = folder / _FORMAT

    def find(self, request: str, roots: Roots) -> Entry | None:
        """Returns the pack of a request, for the contents that its files have now.

        Raises BuildError if another user may have written into the cache.
        """
        for dependencies in self._dependencies(request):
            name = self.identify(request, dependencies, roots)
            self._check_owner("packs", name)
            folder = self._root / "packs" / name
            if is_whole(folder):
                self._check_runs()
                with contextlib.suppress(OSError):  # a cache that is shipped may be read-only
                    os.utime(folder)
                return Entry(folder, dependencies)
        return None

    def _dependencies(self, request: str) -> list[Dependencies]:
        """Returns the dependencies of the builds of the request, the last one first."""
        try:
            lists = self._read_json("direct", f"{request}.json") or []
            return [Dependencies(*map(texts, parts)) for parts in lists]
        except TypeError:
            return []

    def _check_owner(self, *names: str) -> None:
        """Checks a file's owner, as ssh does with its keys: code that is loaded from here runs
        as this user, and notes in here decide which code is loaded."""
        if why := trust.fault(self.folder, _FORMAT, *names):
            raise BuildError(why)

    def _check_runs(self) -> None:
        if os.statvfs(self.folder).f_flag & os.ST_NOEXEC:
            raise BuildError(
                f"{self.folder} is on a file system that is mounted noexec, and code in the cache "
                "is run: name another folder in KERNELMINT_CACHE_DIR"
            )

    def _read_json(self, *names: str) -> Any:
        """Reads a file of the cache; returns None if it is absent or damaged. Raises BuildError if
        another user may have written it."""
        self._check_owner(*names)
        return _read_json(self._root.joinpath(*names))

    @contextlib.contextmanager
    def locked(
        self, requests: Iterable[str], what: str, waiting: Callable[[str], None]
    ) -> Iterator[None]:
        """Waits until no other process or thread builds one of the requests.

        Others are told that this one builds `what`; `waiting` is told what this one waits for.
        """
        folder = self._folder("locks")
        with contextlib.ExitStack() as held:
            for request in sorted(set(requests)):  # one order: no deadlock
                held.enter_context(_locked(folder / request, what, waiting))
            yield

    @contextlib.contextmanager
    def work(self) -> Iterator[tuple[Path, int]]:
        """Gives a folder for a build and the descriptor of its lock, for the compilers to
        inherit: the folder of a killed process is removed when the last of its compilers has
        ended."""
        parent = self._folder("tmp")
        self._sweep(parent)
        folder = Path(tempfile.mkdtemp(dir=parent))
        with _descriptor(folder, os.O_RDONLY) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            try:
                yield folder, lock
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def _sweep(self, parent: Path) -> None:
        for folder in parent.iterdir():
            with contextlib.suppress(OSError):
                if time.time() - folder.stat().st_mtime < 60:
                    continue  # it may be new, and not locked yet
                lock = os.open(folder, os.O_RDONLY)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(lock)

    def identify(self, request: str, dependencies: Dependencies, roots: Roots) -> str:
        """Returns the name that a pack of these dependencies, as they are now, has in the cache."""
        names, folders = dependencies.files, dependencies.folders
        hashes = contents(roots.paths(names), self._system)
        sought = set(dependencies.sought)
        present = [sorted(sought.intersection(_listed(path))) for path in roots.paths(folders)]
        files = list(zip(names, hashes, strict=True))
        return digest([request, files, list(zip(folders, present, strict=True))])

    @functools.cached_property
    def _system(self) -> Mapping[str, Sequence[Any]]:
        """Returns the hashes of headers that come with compilers: hundreds, which are not
        edited."""
        entries = self._read_json("system.json")
        if not isinstance(entries, dict):
            return {}
        return {path: entry for path, entry in entries.items() if isinstance(entry, list)}

    def _remember(self, names: Sequence[str], roots: Roots) -> None:
        """Notes the hashes of the system's headers that a build read."""
        paths = roots.paths(filter(is_system, names))
        hashes = {path: _hashes[path] for path in paths if path in _hashes}
        if any(self._system.get(path) != entry for path, entry in hashes.items()):
            self._write_json("system.json", {**self._system, **hashes})

    def _folder(self, *names: str) -> Path:
        """Returns a folder of the cache, made if it is absent."""
        return trust.folder(self.folder, _FORMAT, *names)

    def _write_json(self, name: str, value: object) -> None:
        folder, _, file = name.rpartition("/")
        path = self._folder(*filter(None, [folder])) / file
        partial = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.part")
        partial.write_text(json.dumps(value))
        _close_to_others(partial)
        partial.replace(path)

    def noted(self, question: str) -> Any:
        """Returns the answer that was noted to a question, a hash; None if there is none. Raises
        BuildError if another user may have written it."""
        return self._read_json("answers", f"{question}.json")

    def note(self, question: str, answer: object) -> None:
        """Notes an answer, plain data, if the cache can be written."""
        with contextlib.suppress(OSError):
            self._write_json(f"answers/{question}.json", answer)

    def publish(
        self, request: str, dependencies: Dependencies, roots: Roots, pack: str, work: Path
    ) -> Entry:
        """Moves a finished pack into the cache. The request is locked."""
        folder = self._folder("packs") / pack
        _seal(work)
        try:
            work.rename(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            if not is_whole(folder):
                with self.work() as (aside, _):
                    folder.rename(aside / pack)
                    work.rename(folder)
        earlier = [earlier for earlier in self._dependencies(request) if earlier != dependencies]
        lists = [dependencies, *earlier][:16]
        self._write_json(f"direct/{request}.json", [[d.files, d.folders, d.sought] for d in lists])
        self._remember(dependencies.files, roots)
        return Entry(folder, dependencies)

    def keep_failed(self, request: str, work: Path) -> Path:
        """Keeps the folder of a build that failed, in place of an earlier one's."""
        folder = self._folder("failed") / request
        shutil.rmtree(folder, ignore_errors=True)
        return work.rename(folder)

    def packs(self) -> list[Usage]:
        """Returns all packs, the damaged ones included, the last used first."""
        usages = []
        for folder in (self._root / "packs").glob("*"):
            with contextlib.suppress(OSError):
                files = [path for path in folder.rglob("*") if path.is_file()]
                size = sum(path.stat().st_size for path in files)
                usages.append(Usage(folder, size, folder.stat().st_mtime))
        return sorted(usages, key=lambda usage: -usage.used)

    def prune(self, most_bytes: int, oldest: float) -> list[Usage]:
        """Removes packs last used before `oldest`, then the longest unused ones until the others
        have no more than `most_bytes`; and every failed build. Returns the packs removed."""
        kept, removed = 0, []
        for usage in self.packs():
            kept += usage.size
            if kept > most_bytes or usage.used < oldest:
                kept -= usage.size
                # One rename takes it out of sight of those who look for packs meanwhile.
                with self.work() as (work, _), contextlib.suppress(FileNotFoundError):
                    usage.folder.rename(work / usage.folder.name)
                    removed.append(usage)
        shutil.rmtree(self._root / "failed", ignore_errors=True)
        return removed

    def writable(self) -> Cache:
        """Returns this cache, or, with a warning, one of this process alone if this one cannot be
        written.

        Raises BuildError if no code can be loaded from it.
        """
        try:
            with self.work():
                self._check_runs()
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
    """Raises BuildError for errors of the file system while something is built."""
    try:
        yield
    except OSError as error:
        free = "free some (`kernelmint cache --prune 0`), or " if error.errno in _FULL else ""
        raise BuildError(
            f"{what}: {error.filename or cache.folder}: {error.strerror or error}: {free}name "
            "another folder in KERNELMINT_CACHE_DIR"
        ) from None


_held: set[int] = set()
# A lock while files and pipes are opened that a forked process must not keep open: no thread forks
# then.
opening = threading.Lock()


def _forget_locks() -> None:
    """Closes its parent's locks in a forked process, which would hold them for as long as it
    runs."""
    opening.release()
    while _held:
        os.close(_held.pop())


os.register_at_fork(
    before=opening.acquire, after_in_parent=opening.release, after_in_child=_forget_locks
)


@contextlib.contextmanager
def _descriptor(path: Path, flags: int) -> Iterator[int]:
    """Opens a file whose lock ends with it; a fork does not inherit it."""
    with opening:
        file = os.open(path, flags, 0o644)
        _held.add(file)
    try:
        yield file
    finally:
        if file in _held:
            _held.discard(file)
            os.close(file)


@contextlib.contextmanager
def _locked(path: Path, what: str, waiting: Callable[[str], None]) -> Iterator[None]:
    with _descriptor(path, os.O_RDWR | os.O_CREAT) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting(os.pread(file, 1000, 0).decode(errors="replace"))
            fcntl.flock(file, fcntl.LOCK_EX)
            waiting("")
        os.ftruncate(file, 0)
        os.pwrite(file, f"process {os.getpid()}, which builds {what}".encode(), 0)
        yield


SEAL = "contents.json"


def _seal(folder: Path) -> None:
    """Notes the hashes of a pack's files beside them; only this user may write them from now on."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SEAL)
    hashes = {path.relative_to(folder).as_posix(): content(path) for path in files}
    (folder / SEAL).write_text(json.dumps(hashes))
    for path in (folder, *folder.rglob("*")):
        _close_to_others(path)


def _close_to_others(path: Path) -> None:
    """Lets only this user write a file or folder, whatever the umask was."""
    path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o022)


def is_whole(folder: Path) -> bool:
    """Returns whether a pack's files are those that were published."""
    hashes = _read_json(folder / SEAL)
    return (
        isinstance(hashes, dict)
        and PACK_JSON in hashes
        and contents(f"{folder}/{name}" for name in hashes) == list(hashes.values())
    )


def _listed(folder: str) -> Sequence[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return ()
