"""The host's code of two libraries, function by function.

A stripped library has the bounds of its functions still, in the table by which exceptions are
unwound (.eh_frame_hdr, "Linux Standard Base Core", 10.6). An instruction of x86-64 names a place by
its distance, so that a function that grows moves the numbers within others: bytes that differ are
read as distances, and count as the same if they lead to places that take each other's place.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import NamedTuple

from codegen.core import elf
from codegen.core.elf import Elf

from ..ptx_report.demangle import demangle

_SYMBOL = struct.Struct("<IBBHQQ")  # a name's place, type, visibility, section, address, size
_FUNCTION = 2  # the type of a function's symbol, below its binding
_DATA_RELATIVE = 0x3B  # a table of pairs of 32 bits, relative to the table's section
_CALLS = (0xE8, 0xE9)  # opcodes of a call, and of a jump in a call's place
_MODE, _RELATIVE = 0xC7, 0x05  # the operand's byte that a distance follows
_JUMP = b"\xff\x25"  # the jump of a .plt's entry, by the address of the imported function
_ENTRY = 16  # bytes of such an entry
_FAR = 1 << 32
_AFTER = (0, 1, 2, 4)  # bytes of an instruction after a distance


class Function(NamedTuple):
    """A function: its address and instructions."""

    start: int
    code: bytes

    @property
    def end(self) -> int:
        """Returns the address after it."""
        return self.start + len(self.code)


@dataclass(frozen=True)
class Difference:
    """A function that differs.

    Attributes:
        name: demangled; "the function at 0x1230" if neither library has it.
        difference: "120 -> 132 bytes", "other instructions", "sinf -> cosf" for another callee.
    """

    name: str
    difference: str


class Image:
    """A library as it lies in memory. Raises ElfError and struct.error for a damaged one."""

    def __init__(self, library: bytes) -> None:
        self.elf = Elf(library)
        loaded = [s for s in self.elf.sections if s.flags & elf.ALLOC and s.address]
        self._sections = sorted(loaded, key=lambda section: section.address)
        self._addresses = [section.address for section in self._sections]
        self.functions = list(self._functions())
        self._starts = [function.start for function in self.functions]
        self._callable = frozenset(self._starts)
        self._imports = dict(self._relocated())
        last = self._sections[-1]
        self._end = last.address + last.size

    @property
    def compilers(self) -> tuple[str, ...]:
        """Returns the compilers that its objects name, the C library's among them."""
        notes = [self.elf.read(s) for s in self.elf.sections if s.name == ".comment"]
        texts = b"".join(notes).decode("utf-8", "backslashreplace").split("\0")
        return tuple(dict.fromkeys(filter(None, texts)))

    @property
    def code(self) -> bytes:
        """Returns its section .text."""
        return b"".join(self.elf.read(s) for s in self._sections if s.name == ".text")

    def names(self) -> dict[int, str]:
        """Returns the names of functions by address: of all, or of exported ones if stripped."""
        names: dict[int, str] = {}
        for section in self.elf.sections:
            if section.name in (".symtab", ".dynsym"):
                strings = self.elf.read(self.elf.sections[section.link])
                for at, info, _, _, address, size in _SYMBOL.iter_unpack(self.elf.read(section)):
                    if info & 0xF == _FUNCTION and size:
                        name = strings[at : strings.index(b"\0", at)]
                        names[address] = name.decode("utf-8", "backslashreplace")
        return names

    def _functions(self) -> Iterator[Function]:
        table = next((s for s in self._sections if s.name == ".eh_frame_hdr"), None)
        if table is None:
            return
        content = self.elf.read(table)
        if content[3] != _DATA_RELATIVE:
            return
        (count,) = struct.unpack_from("<I", content, 8)
        rows = sorted(struct.iter_unpack("<ii", content[12 : 12 + 8 * count]))
        ends = [start for start, _ in rows[1:]] + [_FAR]
        for (start, entry), end in zip(rows, ends, strict=False):
            # length, distance to the CIE, distance to the function, its size
            (size,) = struct.unpack("<I", self._read(table.address + entry + 12, 4))
            section = self._section(table.address + start)
            if section is not None and section.name == ".text":
                begin = table.address + start
                yield Function(begin, self._read(begin, min(size, end - start)))

    def _section(self, address: int) -> elf.Section | None:
        place = bisect_right(self._addresses, address) - 1
        if place < 0:
            return None
        section = self._sections[place]
        return section if address <= section.address + section.size else None

    def _read(self, address: int, size: int) -> bytes:
        section = self._section(address)
        if section is None:
            return b""
        begin, end = self.elf.bounds(section)
        at = begin + address - section.address
        return bytes(self.elf.content[at : min(at + size, end)])

    def _relocated(self) -> Iterator[tuple[int, bytes]]:
        """Yields the addresses of imported functions' and variables' addresses, and their names."""
        for section in self._sections:
            if section.kind == elf.RELA:
                symbols = self.elf.sections[section.link]
                table = self.elf.read(symbols)
                names = self.elf.read(self.elf.sections[symbols.link])
                for place, info, _ in struct.iter_unpack("<QQq", self.elf.read(section)):
                    (at,) = struct.unpack_from("<I", table, (info >> 32) * _SYMBOL.size)
                    if at:
                        yield place, names[at : names.index(b"\0", at)]

    def imported(self, address: int) -> bytes | None:
        """Returns the name of what the loader writes at an address, or of the function that the
        code there jumps to."""
        section = self._section(address)
        if section is not None and section.name.startswith(".plt") and address % 8 == 0:
            stub = self._read(address, _ENTRY)
            jump = stub.find(_JUMP)
            if jump >= 0 and len(stub) >= jump + 6:
                (distance,) = struct.unpack_from("<i", stub, jump + 2)
                address += jump + 6 + distance
        return self._imports.get(address)

    def section_of(self, address: int) -> str | None:
        """Returns the name of the section that an address lies in."""
        section = self._section(address)
        return section.name if section is not None else None

    def function_at(self, address: int) -> Function | None:
        """Returns the function that an address lies in."""
        place = bisect_right(self._starts, address) - 1
        if place < 0 or address >= self.functions[place].end:
            return None
        return self.functions[place]

    def callee(self, function: Function, at: int) -> int | None:
        """Returns the address of the function or import that a call, a jump or an operand leads to,
        whose distance begins at a byte of a function; None for other bytes."""
        if at == 0 or at + 4 > len(function.code):
            return None
        before = function.code[at - 1]
        if before not in _CALLS and before & _MODE != _RELATIVE:
            return None
        (distance,) = struct.unpack_from("<i", function.code, at)
        address: int = function.start + at + 4 + distance
        is_callee = address in self._callable or self.imported(address) is not None
        return address if is_callee else None

    def shape(self, function: Function) -> bytes:
        """Returns a function's code without what may be distances to other places."""
        code, at = bytearray(function.code), 0
        while at <= len(code) - 4:
            (distance,) = struct.unpack_from("<i", code, at)
            target = function.start + at + 4 + distance
            if 0 < target < self._end and not function.start <= target < function.end:
                code[at : at + 4] = bytes(4)
                at += 4
            else:
                at += 1
        return bytes(code)


class Functions:
    """The functions of two libraries, those of one beside those of the other."""

    def __init__(self, old: Image, new: Image, names: Mapping[int, str]) -> None:
        """Takes the libraries, and the functions' names in the new one, by address."""
        self._old, self._new = old, new
        self._names = old.names(), names
        self._pairs = dict(self._paired())
        self._partners = {function.start: pair for pair, function in self._pairs.items()}
        self._places: tuple[dict[int, int], dict[int, int]] = ({}, {})

    def _paired(self) -> Iterator[tuple[Function, Function]]:
        """Yields functions that take each other's place, in the order of the code: equal ones, and
        as many others between them."""
        old, new = ([i.shape(f) for f in i.functions] for i in (self._old, self._new))
        matcher = SequenceMatcher(None, old, new, autojunk=False)
        for _, begin, end, other_begin, other_end in matcher.get_opcodes():
            if end - begin == other_end - other_begin:
                functions = self._old.functions[begin:end]
                yield from zip(functions, self._new.functions[other_begin:other_end], strict=True)

    def count(self) -> int:
        """Returns how many functions there are in either library, those of both once."""
        return len(self._old.functions) + sum(
            new.start not in self._partners for new in self._new.functions
        )

    def differences(self) -> list[Difference]:
        """Returns the functions that differ."""
        differing = [
            (self._name(old, new), how)
            for old, new in self._pairs.items()
            if (how := self._difference(old, new))
        ]
        differing += [
            (self._name(old, None), "only in the wheel")
            for old in self._old.functions
            if old not in self._pairs
        ]
        differing += [
            (self._name(None, new), "not in the wheel")
            for new in self._new.functions
            if new.start not in self._partners
        ]
        names = demangle(name for name, _ in differing)
        return [Difference(names[name], how) for name, how in differing]

    def _name(self, old: Function | None, new: Function | None) -> str:
        function = old or new
        assert function is not None
        return (
            (self._names[1].get(new.start) if new else None)
            or (self._names[0].get(old.start) if old else None)
            or f"the function at {function.start:#x}"
        )

    def _difference(self, old: Function, new: Function) -> str | None:
        if len(old.code) != len(new.code):
            return f"{len(old.code)} -> {len(new.code)} bytes"
        at = 0
        while at < len(old.code):
            callee, other = self._old.callee(old, at), self._new.callee(new, at)
            if callee is not None and other is not None:
                if not self._is_same_place(callee, other):
                    imports = self._old.imported(callee), self._new.imported(other)
                    names = [name.decode() for name in imports if name is not None]
                    return " -> ".join(names) if names[1:] else "calls another function"
                at += 4
            elif old.code[at] == new.code[at]:
                at += 1
            elif end := self._end_of_distance(old, new, at):
                at = end
            else:
                return "other instructions"
        return None

    def _end_of_distance(self, old: Function, new: Function, at: int) -> int | None:
        """Returns the end of the distance to one place that differs at a byte; None if the byte is
        of something else."""
        for begin in range(at, max(at - 4, -1), -1):
            if begin + 4 > len(old.code):
                continue
            distances = [struct.unpack_from("<i", f.code, begin)[0] for f in (old, new)]
            for after in _AFTER:
                end = begin + 4 + after
                if self._is_same_place(
                    old.start + end + distances[0], new.start + end + distances[1]
                ):
                    return begin + 4
        return None

    def _is_same_place(self, old: int, new: int) -> bool:
        """Returns whether addresses lead to the same: a function, an import, or data that no other
        instruction finds elsewhere. (Data are compared by section.)"""
        function, other = self._old.function_at(old), self._new.function_at(new)
        if function is not None or other is not None:
            return (
                function is not None
                and other is not None
                and self._pairs.get(function) == other
                and old - function.start == new - other.start
            )
        imports = self._old.imported(old), self._new.imported(new)
        if imports != (None, None):
            return imports[0] == imports[1]
        section = self._old.section_of(old)
        return (
            section is not None
            and section == self._new.section_of(new)
            and self._places[0].setdefault(old, new) == new
            and self._places[1].setdefault(new, old) == old
        )
