"""Sources of other projects, by pin: an archive named by what it is and its SHA-256.

    pypi:causal-conv1d==1.7.0      a source distribution, on the index that pip is set to
    https://…/v1.2.tar.gz          a file

An archive is fetched once into `sources/` of the cache, checked against its hash, and unpacked;
nothing in it is imported or run. KERNELMINT_SOURCES names folders (as PATH does) in which it is
looked for first: so a machine without a network builds, with what `kernelmint sources --to FOLDER`
laid there on another.

Standard library only, but for unearth, which finds what an index has.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from codegen.home import cache_folder
from codegen.staleness import sha256 as sha256_of

_PYPI = "pypi:"
_SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")
_TIMEOUT = 60  # seconds without a byte
_CHUNK = 1 << 20
_WITHOUT_NETWORK = (
    "Without a network, lay its file into a folder that KERNELMINT_SOURCES names; "
    "`kernelmint sources --to FOLDER` fetches it elsewhere"
)


class ArchiveError(LookupError):
    """An archive cannot be had, or is another than its hash says; the message says which."""


def folder(origin: str, sha256: str) -> Path:
    """The unpacked archive, fetched if it is not in the cache. Raises ArchiveError.

    The one folder that a source distribution has at its top is left out of paths.
    """
    kept = cache_folder() / "sources" / sha256
    if not kept.is_dir():
        pin = _pin(origin, sha256)
        with _work(kept.parent, pin) as work:
            _unpack(_fetch(origin, sha256, work), work / "files", pin)
            with contextlib.suppress(FileExistsError, OSError):
                (work / "files").rename(kept)  # whole; another process may have been first
        if not kept.is_dir():
            raise ArchiveError(f"{pin}: cannot be kept in {kept}")
    inside = list(kept.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else kept


def find(origin: str, sha256: str, path: str) -> Path:
    """The path of a file or folder within an archive. Raises ArchiveError."""
    found = folder(origin, sha256) / path
    if not found.exists():
        pin = _pin(origin, sha256)
        raise ArchiveError(f"{pin} has no {path}, which a spec's `build:` names")
    return found.resolve()


def lay(origin: str, sha256: str, into: Path) -> Path:
    """Fetches an archive into a folder that KERNELMINT_SOURCES may name; its file, which is left as
    it is if it is there already. Raises ArchiveError."""
    into.mkdir(parents=True, exist_ok=True)
    for path in sorted(into.iterdir()):
        if _may_be(path.name, origin) and sha256_of(path) == sha256:
            return path
    with _work(into, _pin(origin, sha256)) as work:
        fetched = _fetch(origin, sha256, work)
        return fetched.rename(into / fetched.name)


def _pin(origin: str, sha256: str) -> str:
    """What errors call an archive."""
    return f"{origin} (sha256 {sha256})"


@contextlib.contextmanager
def _work(parent: Path, pin: str) -> Iterator[Path]:
    try:
        parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=parent, prefix="."))
    except OSError as error:
        raise ArchiveError(f"{pin}: cannot write {parent}: {error.strerror}") from None
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _fetch(origin: str, sha256: str, work: Path) -> Path:
    """A file of `work` with that hash."""
    for name in filter(None, os.environ.get("KERNELMINT_SOURCES", "").split(os.pathsep)):
        for path in sorted(Path(name).iterdir()) if Path(name).is_dir() else ():
            if _may_be(path.name, origin):
                _check(path, sha256, origin)
                return Path(shutil.copyfile(path, work / path.name))
    print(f"fetching {origin}", file=sys.stderr)
    try:
        if origin.startswith(_PYPI):
            path = _from_index(origin, sha256, work)
        else:
            path = _from_url(origin, work)
    except Exception as error:  # what a server, a proxy or a broken index may bring about
        if isinstance(error, ArchiveError):
            raise
        reason = getattr(error, "reason", error)
        raise ArchiveError(
            f"{_pin(origin, sha256)} cannot be fetched: {reason}. {_WITHOUT_NETWORK}"
        ) from None
    _check(path, sha256, origin)
    return path


def _from_url(url: str, work: Path) -> Path:
    path = work / _file_name(url)
    with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer, path.open("wb") as file:
        shutil.copyfileobj(answer, file, _CHUNK)
    return path


def _from_index(origin: str, sha256: str, work: Path) -> Path:
    """The source distribution that the indexes have that pip is set to."""
    try:
        from unearth import PackageFinder
    except ImportError:
        raise ArchiveError(
            f"{_pin(origin, sha256)} is looked for on an index by unearth, which is not installed: "
            'pip install "kernelmint[sources]" (an isolated build takes it from '
            f"build-system.requires), or run `kernelmint sources` before. {_WITHOUT_NETWORK}"
        ) from None
    requirement = origin.removeprefix(_PYPI)
    settings = _pip_settings()
    finder = PackageFinder(
        no_binary=[requirement.partition("==")[0]], index_urls=settings.get("index-url", ())
    )  # without an index: the default one
    for url in settings.get("extra-index-url", ()):
        finder.add_index_url(url)
    if settings.get("no-index", ["0"])[0].lower() in ("1", "true", "yes", "on"):
        finder.sources.clear()
    for link in settings.get("find-links", ()):
        finder.add_find_links(link if "://" in link else Path(link).absolute().as_uri())
    best = finder.find_best_match(requirement, allow_yanked=True, allow_prereleases=True).best
    if best is None:
        raise ArchiveError(
            f"{_pin(origin, sha256)}: there is no source distribution {requirement} on the indexes "
            f"that pip is set to (`pip config list`). {_WITHOUT_NETWORK}"
        )
    path = work / str(best.link.filename)
    with finder.session.get_stream(best.link.normalized) as answer, path.open("wb") as file:
        answer.raise_for_status()
        file.writelines(answer.iter_bytes(_CHUNK))
    return path


def _pip_settings() -> dict[str, list[str]]:
    """The options that pip's files and PIP_* set, with their words."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found: dict[str, list[str]] = {}
    for line in listed.splitlines():  # variables of the environment come last
        name, _, value = line.partition("=")
        found[name.rpartition(".")[2]] = " ".join(shlex.split(value)).split()
    return found


def _unpack(archive: Path, into: Path, pin: str) -> None:
    """Files and folders within `into`, read-only: neither a path nor a link leads out of it."""
    if not hasattr(tarfile, "data_filter"):
        raise ArchiveError(f"{pin}: unpacking it needs Python 3.10.12, 3.11.4 or later")
    try:
        if archive.name.endswith(".zip"):
            with zipfile.ZipFile(archive) as zipped:
                zipped.extractall(into)
        else:
            with tarfile.open(archive) as packed:
                packed.extractall(into, filter="data")
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
        raise ArchiveError(f"{pin}: {archive.name} cannot be unpacked: {error}") from None
    for path in into.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(0o444)


def _file_name(url: str) -> str:
    return PurePosixPath(urllib.request.url2pathname(url.partition("#")[0].partition("?")[0])).name


def _may_be(name: str, origin: str) -> bool:
    """Whether a file of this name is meant by an origin."""
    if not name.endswith(_SUFFIXES):
        return False
    if not origin.startswith(_PYPI):
        return name == _file_name(origin)
    stem = next(name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix))
    project, _, version = stem.rpartition("-")
    pinned, _, pinned_version = origin.removeprefix(_PYPI).partition("==")
    return _normal(project) == _normal(pinned) and version == pinned_version


def _normal(project: str) -> str:
    """As PEP 503 compares names."""
    return re.sub(r"[-_.]+", "-", project).lower()


def _check(path: Path, sha256: str, origin: str) -> None:
    if (found := sha256_of(path)) != sha256:
        raise ArchiveError(
            f"{path.name} ({path.stat().st_size} bytes) is not {origin} as the spec pins it: got "
            f"sha256 {found}, expected {sha256}. It is truncated or was altered"
        )
