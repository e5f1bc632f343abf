"""Sections of ELF files of 64 bits, for processors and for GPUs ("System V ABI", ELF header and
sections). Standard library only.

A file may be damaged or hostile: what is read is bounded by the file's size.
"""

from __future__ import annotations

import mmap
import struct
from typing import NamedTuple, TypeAlias

# A file's bytes: a copy, or the pages of the file.
Bytes: TypeAlias = bytes | mmap.mmap

MAGIC = b"\x7fELF"
MAGIC_64 = MAGIC + b"\x02\x01"  # 64 bits, little-endian
EM_CUDA = 190
# Types of sections: a program's data, and sections without room in the file.
PROGBITS, RELA, NOBITS, INIT_ARRAY, FINI_ARRAY, RELR = 1, 4, 8, 14, 15, 19
ALLOC = 2  # the flag of sections that are loaded
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_EXTENDED = 0xFFFF  # an index of 16 bits that says: it stands in the first section
_SHARED_NAMES = 16  # how often names may overlap: ".text.f" may be the tail of ".rel.text.f"


class ElfError(ValueError):
    """The file is not a whole ELF file of 64 bits; the message says why."""


class Section(NamedTuple):
    """A section, and where its content is."""

    name: str
    kind: int
    flags: int
    offset: int
    size: int  # in memory; in the file none if `kind` is NOBITS
    link: int  # the index of the section that this one refers to
    info: int
    address: int  # in memory


class Elf:
    """An ELF file: its header's members, and its sections by index. Raises ElfError."""

    def __init__(self, content: Bytes) -> None:
        self.content = content
        if content[:4] != MAGIC:
            raise ElfError("not an ELF file")
        if len(content) < _HEADER.size:
            raise ElfError(f"an ELF file cut after {len(content)} bytes")
        if content[:6] != MAGIC_64:
            raise ElfError("not an ELF file of 64 bits, little-endian")
        identity, self.kind, self.machine, _, _, _, table, self.flags, *counts = _HEADER.unpack(
            content[: _HEADER.size]
        )
        self.abi_version = identity[8]
        *_, entry, count, names = counts
        self.sections = self._read(table, entry, count, names) if table else []

    def _read(self, table: int, entry: int, count: int, names: int) -> list[Section]:
        if entry != _SECTION.size:
            raise ElfError(f"section headers of {entry} bytes, expected {_SECTION.size}")
        first = self._unpacked(table, 1)[0]
        count = count or first[5]
        headers = self._unpacked(table, count)
        names = first[6] if names == _EXTENDED else names
        if names >= count:
            raise ElfError(f"section {names} holds the names, of {count}")
        strings = self.content[slice(*self._bounds(headers[names]))]
        sections: list[Section] = []
        room = _SHARED_NAMES * len(strings) + len(headers)
        for name, kind, flags, address, offset, size, link, info, _, _ in headers:
            end = strings.find(b"\0", name)
            room -= end - name
            if end < 0 or room < 0:
                raise ElfError(f"section {len(sections)} has no name")
            text = strings[name:end].decode("utf-8", "backslashreplace")
            sections.append(Section(text, kind, flags, offset, size, link, info, address))
        return sections

    def _unpacked(self, table: int, count: int) -> list[tuple[int, ...]]:
        end = table + count * _SECTION.size
        if end > len(self.content):
            raise ElfError(
                f"cut: its {count} section headers end at byte {end:,}, it has "
                f"{len(self.content):,}"
            )
        return list(_SECTION.iter_unpack(self.content[table:end]))

    def _bounds(self, header: tuple[int, ...]) -> tuple[int, int]:
        kind, offset, size = header[1], header[4], header[5]
        if kind != NOBITS and offset + size > len(self.content):
            raise ElfError(
                f"cut: a section ends at byte {offset + size:,}, it has {len(self.content):,}"
            )
        return offset, offset + (0 if kind == NOBITS else size)

    def bounds(self, section: Section) -> tuple[int, int]:
        """Returns where a section's content begins and ends in the file. Raises ElfError."""
        return self._bounds((0, section.kind, 0, 0, section.offset, section.size))

    def read(self, section: Section) -> bytes:
        """Returns a section's content; none of NOBITS. Raises ElfError."""
        return self.content[slice(*self.bounds(section))]
