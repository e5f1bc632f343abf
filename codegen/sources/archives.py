"""Sources of other projects, by pin: an archive named by its origin and its SHA-256.

    pypi:causal-conv1d==1.7.0      a source distribution, on the index that pip is set to
    https://…/v1.2.tar.gz          a file

An archive is fetched once into `sources/` of the cache, checked against its hash, and unpacked;
nothing in it is imported or run. KERNELMINT_SOURCES names folders (as PATH does) that are searched
first: so a machine without a network builds, with the files that `kernelmint sources --to FOLDER`
fetched on another machine.

Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from codegen.core import trust
from codegen.core.home import cache_folder, expanded
from codegen.core.staleness import open_regular
from codegen.core.staleness import sha256 as sha256_of
from codegen.core.words import one_line
from codegen.sources import fetch
from codegen.sources.unpack import unpack

_SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")
_CHUNK = 1 << 20
_PATIENCE = 60  # seconds in which hardly a byte may come
_WITHOUT_NETWORK = (
    "Without a network, lay its file into a folder that KERNELMINT_SOURCES names; "
    "`kernelmint sources --to FOLDER` fetches it elsewhere"
)


class ArchiveError(LookupError):
    """An archive cannot be had, or does not have its hash; the message names the archive."""


def folder(origin: str, sha256: str) -> Path:
    """Returns the unpacked archive, fetched if it is not in the cache. Raises ArchiveError.

    The one folder that a source distribution has at its top is left out of paths.
    """
    pin, cache = _pin(origin, sha256), cache_folder()
    with _written(pin, cache):
        parent = trust.folder(cache, "sources")
    if why := trust.fault(cache, "sources", sha256):
        raise ArchiveError(f"{pin}: {why}")
    kept = parent / sha256
    if not kept.is_dir():
        with _work(parent, pin) as work:
            archive = _fetch(origin, sha256, work)
            try:
                unpack(archive, work / "files")
            except Exception as error:  # whatever a damaged archive makes its decoders raise
                why = one_line(str(error)) or type(error).__name__
                raise ArchiveError(f"{pin}: {archive.name} cannot be unpacked: {why}") from None
            with contextlib.suppress(FileExistsError, OSError):
                (work / "files").rename(kept)  # whole; another process may have been first
        if not kept.is_dir():
            raise ArchiveError(f"{pin}: cannot be kept in {kept}")
    inside = list(kept.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else kept


def find(origin: str, sha256: str, path: str) -> Path:
    """Returns the path of a file or folder within an archive. Raises ArchiveError."""
    file = folder(origin, sha256) / path
    if not file.exists():
        pin = _pin(origin, sha256)
        raise ArchiveError(f"{pin} has no {path}, which a spec's `build:` names")
    return file.resolve()


def lay(origin: str, sha256: str, into: Path) -> Path:
    """Fetches an archive into a folder that KERNELMINT_SOURCES may name; returns its file, which
    stays as it is if it is there already. Raises ArchiveError."""
    pin = _pin(origin, sha256)
    with _written(pin, into):
        into.mkdir(parents=True, exist_ok=True)
    for path in sorted(into.iterdir()):
        if _may_be(path.name, origin) and sha256_of(path) == sha256:
            return path
    with _work(into, pin) as work:
        fetched = _fetch(origin, sha256, work)
        return fetched.rename(into / fetched.name)


def _pin(origin: str, sha256: str) -> str:
    """Returns an archive's name in errors."""
    return f"{fetch.masked(origin)} (sha256 {sha256})"


@contextlib.contextmanager
def _written(pin: str, folder: Path) -> Iterator[None]:
    """Turns an error of the file system into an ArchiveError."""
    try:
        yield
    except OSError as error:
        raise ArchiveError(f"{pin}: cannot write {folder}: {error.strerror}") from None


@contextlib.contextmanager
def _work(parent: Path, pin: str) -> Iterator[Path]:
    with contextlib.ExitStack() as cleanup:
        with _written(pin, parent):
            work = cleanup.enter_context(trust.work(parent, ".kernelmint-"))
        yield work


def _fetch(origin: str, sha256: str, work: Path) -> Path:
    """Returns a file of `work` with that hash. The copy is checked, which nobody else may write."""
    for name in filter(None, os.environ.get("KERNELMINT_SOURCES", "").split(os.pathsep)):
        for path in sorted(expanded(name).iterdir()) if expanded(name).is_dir() else ():
            if _may_be(path.name, origin):
                return _checked(_copied(path, work / path.name), sha256, origin)
    print(f"fetching {fetch.masked(origin)}", file=sys.stderr)
    into = work / "fetched"
    into.mkdir()
    done = subprocess.run(
        [sys.executable, fetch.__file__, origin, str(into), str(_PATIENCE)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        why = " ".join(done.stderr.split()) or f"its process ended with {done.returncode}"
        raise ArchiveError(f"{_pin(origin, sha256)} cannot be fetched: {why}. {_WITHOUT_NETWORK}")
    (path,) = into.iterdir()
    return _checked(path, sha256, origin)


def _copied(source: Path, path: Path) -> Path:
    try:
        with open_regular(source) as file:
            fetch.receive(iter(lambda: file.read(_CHUNK), b""), path)
    except OSError as error:
        raise ArchiveError(f"{source}: {error.strerror}") from None
    except fetch.FetchError as error:
        raise ArchiveError(f"{source}: {error}") from None
    return path


def _may_be(name: str, origin: str) -> bool:
    """Returns whether an origin may mean a file of this name."""
    if not name.endswith(_SUFFIXES):
        return False
    if not origin.startswith(fetch.PYPI):
        return name == fetch.file_name(origin)
    stem = next(name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix))
    project, _, version = stem.rpartition("-")
    pinned, _, pinned_version = origin.removeprefix(fetch.PYPI).partition("==")
    return _normal(project) == _normal(pinned) and version == pinned_version


def _normal(project: str) -> str:
    """Returns a name as PEP 503 compares names."""
    return re.sub(r"[-_.]+", "-", project).lower()


def _checked(path: Path, sha256: str, origin: str) -> Path:
    if (actual := sha256_of(path)) != sha256:
        raise ArchiveError(
            f"{path.name} ({path.stat().st_size} bytes) is not {fetch.masked(origin)} as the spec "
            f"pins it: got sha256 {actual}, expected {sha256}. It is truncated or was altered"
        )
    return path
