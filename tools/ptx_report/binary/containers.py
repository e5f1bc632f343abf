"""Containers of cubins and PTX: libraries and objects, fatbinaries, archives, wheels, folders."""

from __future__ import annotations

import mmap
import re
import shutil
import zipfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from codegen.core.elf import EM_CUDA, Bytes, Elf, ElfError
from codegen.core.elf import MAGIC as ELF

from . import fatbin
from .fatbin import BinaryError, Budget, Entry

_ARCHIVE, _THIN, _ZIP = b"!<arch>\n", b"!<thin>\n", b"PK\x03\x04"
# An archive's member: its name, numbers that do not matter, its size.
_MEMBER = re.compile(rb"(.{16}).{32}(\d{1,10}) *`\n", re.DOTALL)
_MEMBER_SIZE = 60
_NAMES = re.compile(r".*\.(so(\.[\w.]+)?|o|a|cubin|fatbin|ptx)")
_FATBIN, _RELOCATABLE = ".nv_fatbin", "__nv_relfatbin"
_SMALL = 1 << 25  # bytes of a wheel's member that need no file of their own


class File(NamedTuple):
    """A file that may hold code for GPUs."""

    path: Path
    source: str  # the name that a person knows it by
    entries: list[Entry]
    packed: int = 0  # bytes of a wheel's member, named `source`, whose entries are not yet read


def is_binary(path: Path) -> bool:
    """Returns whether a file may hold code for GPUs: an object, an archive, a wheel, PTX."""
    if path.suffix == ".ptx":
        return True
    try:
        with path.open("rb") as stream:
            head = stream.read(8)
    except OSError:
        return False
    return head.startswith((ELF, fatbin.MAGIC, _ARCHIVE, _THIN, _ZIP))


def files(path: Path, work: Path) -> Iterator[File]:
    """Yields the files of a folder, a wheel, or one file that hold code for GPUs, by name.

    Raises BinaryError for what cannot be read.

    Args:
        path: what a user named.
        work: an empty folder, to which a wheel's files are written.
    """
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if _NAMES.fullmatch(file.name) and file.is_file() and not file.is_symlink():
                yield from _of_file(file, file.relative_to(path).as_posix())
        return
    with path.open("rb") as stream:
        is_wheel = stream.read(len(_ZIP)) == _ZIP
    yield from _of_wheel(path, work) if is_wheel else _of_file(path, path.name)


def _of_wheel(path: Path, work: Path) -> Iterator[File]:
    budget = Budget.of(path.stat().st_size)
    try:
        with zipfile.ZipFile(path) as wheel:
            members = {member.filename: member for member in wheel.infolist()}.values()
            for number, member in enumerate(members):
                if not _NAMES.fullmatch(member.filename):
                    continue
                budget.take(member.file_size)
                if member.file_size <= _SMALL:
                    yield File(path, member.filename, [], member.file_size)
                    continue
                file = work / str(number)
                with wheel.open(member) as packed, file.open("wb") as out:
                    shutil.copyfileobj(packed, out, 1 << 20)
                yield from _of_file(file, member.filename)
    except (BinaryError, OSError):
        raise
    except Exception as error:  # each way of compressing has its own
        raise BinaryError(f"not a whole wheel: {error}") from None


def unpacked(file: File) -> bytes:
    """Returns the content of a wheel's member. Raises BinaryError."""
    try:
        return _wheel(file.path, file.path.stat().st_mtime_ns).read(file.source)
    except OSError:
        raise
    except Exception as error:  # each way of compressing has its own
        raise BinaryError(f"{file.source}: damaged in its wheel: {error}") from None


def contents(file: File) -> Iterator[tuple[Bytes, File]]:
    """Yields the content of a file, which is open meanwhile, with its entries; of a wheel's member
    the files within it. Raises BinaryError."""
    if file.packed:
        content = unpacked(file)
        for inner in within(content, file.path, file.source):
            yield content, inner
    elif file.entries:
        with (
            file.path.open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as pages,
        ):
            yield pages, file


@lru_cache(1)
def _wheel(path: Path, _: int) -> zipfile.ZipFile:
    """Returns a wheel, which stays open for its next member: its directory may be long."""
    return zipfile.ZipFile(path)


def _of_file(path: Path, source: str) -> Iterator[File]:
    if path.stat().st_size:
        with (
            path.open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            yield from within(content, path, source)


def within(content: Bytes, path: Path, source: str) -> Iterator[File]:
    """Yields the files with code for GPUs in a file's content: one, or an archive's members.
    Raises BinaryError."""
    size = len(content)
    budget = Budget.of(size)
    try:
        if content[: len(_ARCHIVE)] == _ARCHIVE:
            for name, begin, end in _members(content):
                found = list(_entries(content, begin, end, budget))
                if found:
                    yield File(path, f"{source}({name})", found)
            return
        if content[: len(_THIN)] == _THIN:
            raise BinaryError("a thin archive, which only names its objects: give those")
        is_ptx = source.endswith(".ptx")
        found = (
            [Entry(fatbin.PTX, None, 0, size)]
            if is_ptx
            else list(_entries(content, 0, size, budget))
        )
    except (BinaryError, ElfError) as error:
        raise BinaryError(f"{source}: {error}") from None
    if found:
        yield File(path, source, found)


def _entries(content: Bytes, begin: int, end: int, budget: Budget) -> Iterator[Entry]:
    """Yields the cubins and PTX of an object or a fatbinary that is a part of a file."""
    magic = content[begin : begin + 4]
    if magic == fatbin.MAGIC:
        yield from fatbin.entries(content, begin, end, budget)
    elif magic == ELF:
        is_whole = begin == 0 and end == len(content)
        elf = Elf(content if is_whole else content[begin:end])
        if elf.machine == EM_CUDA:
            budget.take(end - begin)
            yield Entry(fatbin.CUBIN, None, begin, end)
            return
        of_name = {section.name: section for section in elf.sections}
        # A linked library keeps the objects that its code was linked from; nothing loads those.
        section = of_name.get(_FATBIN) or of_name.get(_RELOCATABLE)
        if section is not None:
            first, last = elf.bounds(section)
            yield from fatbin.entries(content, begin + first, begin + last, budget)


def _members(content: Bytes) -> Iterator[tuple[str, int, int]]:
    """Yields an archive's members: name, begin, end."""
    at, names = len(_ARCHIVE), b""
    while at < len(content):
        match = _MEMBER.fullmatch(content[at : at + _MEMBER_SIZE])
        if match is None:
            raise BinaryError(f"no member of the archive at byte {at:,}, where one was expected")
        begin = at + _MEMBER_SIZE
        end = begin + int(match[2])
        if end > len(content):
            raise BinaryError(f"cut: a member ends at byte {end:,}, it has {len(content):,}")
        at = end + end % 2
        name = match[1].rstrip()
        if name == b"//":
            names = content[begin:end]
        elif name not in (b"/", b"/SYM64/"):
            if name[1:].isdigit() and name.startswith(b"/"):
                start = int(name[1:])
                name = names[start : names.find(b"\n", start)]
            yield name.rstrip(b"/").decode(errors="backslashreplace"), begin, end
