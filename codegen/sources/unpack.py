"""Archives of other projects to files. No file or link of an archive leaves the archive's folder.

Names and links are followed in the archive's own list of members, never on disk: tarfile's filter
asks the file system, which a long path leads astray (CVE-2025-4517), and older Pythons have no
filter. Standard library only.
"""

from __future__ import annotations

import functools
import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from codegen.core.words import counted

_MOST_BYTES = 8 << 30  # unpacked
_MOST_MEMBERS = 500_000
_MOST_LINKS = 40  # on the way of a link; this limit and the next are Linux's
_LONGEST_PATH = 4096

_Name = tuple[str, ...]  # a path within an archive, by its parts


class UnpackError(ValueError):
    """An archive holds a member that is not unpacked; the message names it."""


@dataclass(frozen=True)
class _Member:
    """A member of an archive: a folder; a file, which `open` reads; a link to `target`, as seen
    from the link; or a repetition of the file `again`."""

    name: str
    size: int = 0
    open: Callable[[], IO[bytes] | None] | None = None
    target: str | None = None
    again: str | None = None


def unpack(archive: Path, into: Path) -> None:
    """Unpacks a zip, a wheel or a tar archive into a new folder: files are read-only, links lead to
    members, and links to absent members are left out.

    Raises UnpackError, or whatever zipfile and tarfile raise for a damaged archive.
    """
    into.mkdir()
    if archive.name.endswith((".zip", ".whl")):
        with zipfile.ZipFile(archive) as zipped:
            links = _unpack(_of_zip(zipped), into)
    else:
        with tarfile.open(archive) as packed:
            links = _unpack(_of_tar(packed), into)
    for parent, folders, files in os.walk(into):
        for names, mode in ((folders, 0o755), (files, 0o444)):
            for name in names:
                os.chmod(os.path.join(parent, name), mode)
    into.chmod(0o755)
    for link, member in links.items():
        link.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(member, link.parent))


def _of_zip(zipped: zipfile.ZipFile) -> Iterator[_Member]:
    for entry in zipped.infolist():
        if entry.is_dir():
            yield _Member(entry.filename)
        elif stat.S_ISLNK(entry.external_attr >> 16):
            with zipped.open(entry) as text:
                yield _Member(entry.filename, target=os.fsdecode(text.read(_LONGEST_PATH)))
        else:
            opened = functools.partial(zipped.open, entry)
            yield _Member(entry.filename, entry.file_size, opened)


def _of_tar(packed: tarfile.TarFile) -> Iterator[_Member]:
    for entry in packed:
        if entry.isdir():
            yield _Member(entry.name)
        elif entry.isreg():
            opened = functools.partial(packed.extractfile, entry)
            yield _Member(entry.name, entry.size, opened)
        elif entry.issym():
            yield _Member(entry.name, target=entry.linkname)
        elif entry.islnk():
            yield _Member(entry.name, again=entry.linkname)
        else:
            raise UnpackError(f"{entry.name} is neither a file, a folder nor a link")


def _unpack(members: Iterator[_Member], into: Path) -> dict[Path, Path]:
    """Writes the files and folders; the links, and the files and folders they lead to."""
    targets: dict[_Name, str | None] = {(): None}  # a link's; None for files and folders
    size = 0
    for count, member in enumerate(members, 1):
        name = _name(member.name)
        path = into.joinpath(*name)
        above = [name[:end] for end in range(len(name))]
        if any(targets.setdefault(folder, None) is not None for folder in above):
            raise UnpackError(f"{member.name} lies below a link")
        if targets.setdefault(name, member.target) != member.target:
            raise UnpackError(f"{member.name} is a link and something else")
        file = None if member.again is None else into.joinpath(*_name(member.again))
        if file is not None and not file.is_file():
            raise UnpackError(f"{member.name} is a link to {member.again}, no file before it")
        size += member.size if file is None else file.stat().st_size
        if count > _MOST_MEMBERS or size > _MOST_BYTES:
            most = f"{counted(_MOST_MEMBERS, 'member')} or {_MOST_BYTES >> 30} GiB"
            raise UnpackError(f"it holds more than {most}")
        if member.target is not None:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if file is not None:
            shutil.copyfile(file, path)
        elif member.open is not None:
            with _opened(member) as source, path.open("wb") as output:
                shutil.copyfileobj(source, output)
        else:
            path.mkdir(exist_ok=True)
    return {
        into.joinpath(*name): into.joinpath(*member_name)
        for name, target in targets.items()
        if target is not None and (member_name := _followed(targets, name)) is not None
    }


def _opened(member: _Member) -> IO[bytes]:
    assert member.open is not None
    opened = member.open()
    assert opened is not None  # a type that every regular file has
    return opened


def _name(text: str) -> _Name:
    name = tuple(part for part in text.split("/") if part not in ("", "."))
    if len(text) > _LONGEST_PATH:
        raise UnpackError(f"{text[:40]}… is a name of more than {_LONGEST_PATH} characters")
    if text.startswith("/") or ".." in name:
        raise UnpackError(f"{text} lies outside of it")
    return name


def _followed(targets: Mapping[_Name, str | None], link: _Name) -> _Name | None:
    """Returns the file or folder that a link leads to; None if it is not in the archive, or the way
    there has no end. Raises UnpackError if it leads out of the archive."""
    place: _Name = ()
    parts, count = [*reversed(link)], 0
    while parts:
        part = parts.pop()
        if part in ("", "."):
            continue
        if part == "..":
            if not place:
                raise UnpackError(f"the link {'/'.join(link)} leads out of it")
            place = place[:-1]
            continue
        place = (*place, part)
        target = targets.get(place, "")
        if target is None:
            continue
        count += 1
        if place not in targets or count > _MOST_LINKS:
            return None
        if target.startswith("/"):
            raise UnpackError(f"the link {'/'.join(link)} leads out of it")
        place = place[:-1]
        parts += reversed(target.split("/"))
    return place
