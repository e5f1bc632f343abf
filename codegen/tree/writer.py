"""The only code that touches generated/.

A run writes only the files that differ, swaps each in atomically, and removes files that an earlier
run made and this one does not. It may be killed at any point: before anything changes, a journal
names every file that the run may create, so that the next run knows them as codegen's own; orphans
go before the manifest that no longer lists them comes; the journal goes last.
"""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from codegen.core.problems import UsageError
from codegen.core.staleness import JOURNAL, MANIFEST, is_text, read_json, read_regular
from codegen.core.words import display_path
from codegen.emit.render import MARK

_TEMPORARY = ".codegen-new"


@dataclass(frozen=True)
class Written:
    """The changes of a run, as paths relative to the tree."""

    written: tuple[str, ...]
    unchanged: tuple[str, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True)
class Difference:
    """The differences of a tree from the one codegen would write.

    Orphans are files that a run would remove; strays bear codegen's mark, and no manifest lists
    them.
    """

    diffs: Mapping[str, str]  # by path
    orphans: tuple[str, ...]
    strays: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.diffs or self.orphans or self.strays)


def write(out: Path, files: Mapping[str, str]) -> Written:
    """Makes the tree `out` hold `files`; leaves alone the files that codegen did not make."""
    with _reported("write", out):
        out.mkdir(parents=True, exist_ok=True)
        with locked(out):
            return _write(out, files)


def compare(out: Path, files: Mapping[str, str]) -> Difference:
    """Returns the changes that `write` would make, without touching anything."""
    with _reported("read", out):
        _refuse_links(out, files)
        diffs = {}
        for path in sorted(files):
            current = _read(out / path)
            if current != files[path].encode():
                diffs[path] = _diff(path, current, files[path])
        earlier = _earlier_files(out) | {JOURNAL}
        orphans = _orphans(out, files, earlier)
        others = sorted(set(_all_files(out)) - earlier - files.keys())
        strays = [path for path in others if _bears_mark(out / path)]
        return Difference(diffs, tuple(orphans), tuple(strays))


def _write(out: Path, files: Mapping[str, str]) -> Written:
    earlier = _earlier_files(out)
    _refuse_links(out, earlier | files.keys())
    _refuse_foreign(out, files, earlier)
    changed = [path for path in files if _read(out / path) != files[path].encode()]
    orphans = _orphans(out, files, earlier)
    interrupted = any(os.path.lexists(out / path) for path in (JOURNAL, JOURNAL + _TEMPORARY))
    if changed or orphans or interrupted:
        (out / (JOURNAL + _TEMPORARY)).unlink(missing_ok=True)
        _swap_in(out / JOURNAL, json.dumps(sorted(earlier | files.keys())))
        for path in sorted(earlier | files.keys()):
            (out / (path + _TEMPORARY)).unlink(missing_ok=True)
        for path in sorted(changed):
            if path != MANIFEST:
                _swap_in(out / path, files[path])
        for path in orphans:
            (out / path).unlink()
            _remove_empty_folders(out, (out / path).parent)
        if MANIFEST in changed:
            _swap_in(out / MANIFEST, files[MANIFEST])
        (out / JOURNAL).unlink()
    unchanged = sorted(files.keys() - set(changed))
    return Written(tuple(sorted(changed)), tuple(unchanged), tuple(orphans))


@contextlib.contextmanager
def _reported(verb: str, out: Path) -> Iterator[None]:
    """Turns errors of the file system into errors for people."""
    try:
        yield
    except OSError as error:
        name = display_path(Path(error.filename)) if error.filename else display_path(out)
        raise UsageError(f"cannot {verb} {name}: {error.strerror or error}") from None


@contextlib.contextmanager
def locked(out: Path) -> Iterator[None]:
    """Allows one writer of a folder at a time; the lock goes with the process that holds it."""
    folder = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _earlier_files(out: Path) -> set[str]:
    """Returns the files that earlier runs made, finished or not, by their lists."""
    paths: set[str] = set()
    journal, manifest = read_json(out / JOURNAL), read_json(out / MANIFEST)
    if isinstance(journal, list):
        paths.update(path for path in journal if isinstance(path, str))
    if isinstance(manifest, dict) and isinstance(manifest.get("outputs"), dict):
        paths.update((*manifest["outputs"], MANIFEST))
    return {path for path in paths if _is_inside(path)}


def _is_inside(path: str) -> bool:
    """Returns whether a path that a manifest lists stays within the tree."""
    parts = PurePosixPath(path).parts
    return is_text(path) and bool(parts) and not path.startswith("/") and ".." not in parts


def _orphans(out: Path, files: Mapping[str, str], earlier: set[str]) -> list[str]:
    """Returns files of earlier runs that this run does not make.

    A list may be forged: of the files it names, only those that bear codegen's mark are codegen's.
    """
    there = [path for path in earlier - files.keys() if os.path.lexists(out / path)]
    return sorted(path for path in there if path == JOURNAL or _bears_mark(out / path))


def _refuse_links(out: Path, paths: Iterable[str]) -> None:
    """Raises UsageError if a folder of the tree is a link to files that are not codegen's."""
    folders = {folder for path in paths for folder in PurePosixPath(path).parents}
    for folder in sorted(folders - {PurePosixPath(".")}):
        if (out / folder).is_symlink():
            raise UsageError(
                f"{display_path(out / folder)} is a symbolic link: codegen writes nothing through "
                "links; remove it"
            )


def _refuse_foreign(out: Path, files: Mapping[str, str], earlier: set[str]) -> None:
    """Raises UsageError if a file that codegen did not write has the name of one of codegen's.

    A manifest bears no mark; it is codegen's if any other file is, and may be torn.
    """
    if any(_bears_mark(out / path) for path in files):
        earlier = earlier | {MANIFEST}
    for path in sorted(files.keys() - earlier):
        if os.path.lexists(out / path) and not _bears_mark(out / path):
            raise UsageError(
                f"{display_path(out / path)} is in the way: codegen did not make it; move it away"
            )


def _bears_mark(path: Path) -> bool:
    """Returns whether a file says in its first line that codegen made it."""
    try:
        return MARK.encode() in read_regular(path, 200).partition(b"\n")[0]
    except OSError:
        return False


def _read(path: Path) -> bytes | None:
    try:
        return read_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _swap_in(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + _TEMPORARY)
    temporary.write_bytes(text.encode())
    temporary.replace(path)


def _remove_empty_folders(out: Path, folder: Path) -> None:
    while folder != out:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


def _all_files(out: Path) -> Iterator[str]:
    for folder, _, names in os.walk(out):
        for name in names:
            yield (Path(folder) / name).relative_to(out).as_posix()


def _diff(path: str, current: bytes | None, expected: str) -> str:
    before = [] if current is None else current.decode(errors="replace").splitlines(keepends=True)
    lines = difflib.unified_diff(
        before,
        expected.splitlines(keepends=True),
        "/dev/null" if current is None else f"a/{path}",
        f"b/{path}",
    )
    return "".join(line if line.endswith("\n") else line + "\n" for line in lines)
