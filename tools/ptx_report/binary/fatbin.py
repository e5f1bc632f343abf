"""The entries of fatbinaries: cubins and PTX, compressed or not.

A fatbinary is a header of 16 bytes and entries, each a header and its content. nvcc compresses PTX,
and cubins if asked, by LZ4 or, from CUDA 12.4 on, by Zstandard.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from codegen.core.elf import Bytes

MAGIC = b"\x50\xed\x55\xba"
PTX, CUBIN = 1, 2
_HEADER = struct.Struct("<IHHQ")
# Kind, version, size of the header, of the content, compressed; options, version, architecture;
# name, flags, and the size of the content when it is decompressed.
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_LZ4, _ZSTD = 0x2000, 0x8000
_SUFFIXES = {0x100000: "a", 0x200000: "f"}
_LARGEST = 1 << 30  # bytes of one entry
# Bytes that a file may decompress to in all. PyTorch's library of 500 MB holds 5 GB.
_RATIO, _LEAST = 64, 1 << 28
_INSTALL = "pip install 'kernelmint[binaries]'"


class BinaryError(ValueError):
    """A file that cannot be read; the message says why."""


@dataclass
class Budget:
    """How many bytes may yet come out of a file: what a hostile one asks for ends there."""

    left: int

    @classmethod
    def of(cls, size: int) -> Budget:
        """Returns the budget of a file of `size` bytes."""
        return cls(_RATIO * size + _LEAST)

    def take(self, size: int) -> None:
        """Takes bytes from the budget. Raises BinaryError if they are too many."""
        self.left -= size
        if size > _LARGEST or self.left < 0:
            raise BinaryError(f"a part of it claims {size:,} bytes: more than such a file holds")


class Entry(NamedTuple):
    """A cubin or PTX, as it is stored in a file."""

    kind: int  # PTX, CUBIN, or another: LTO's intermediate code
    arch: str | None  # sm_90a, or compute_90a of PTX; None if only the content says it
    begin: int  # where its content is in the file
    end: int
    flags: int = 0
    size: int = 0  # bytes of the decompressed content, if it is compressed

    def read(self, content: Bytes) -> bytes:
        """Returns the entry's content, decompressed. Raises BinaryError."""
        stored = content[self.begin : self.end]
        if not self.size:
            return stored
        decompress = _lz4() if self.flags & _LZ4 else _zstd()
        try:
            plain = decompress(stored, self.size)
        except Exception as error:  # each library has its own
            raise BinaryError(
                f"what is compressed at byte {self.begin:,} is damaged: {error}"
            ) from None
        if len(plain) != self.size:
            raise BinaryError(
                f"what is compressed at byte {self.begin:,} has {len(plain):,} bytes, expected "
                f"{self.size:,}"
            )
        return plain


def entries(content: Bytes, begin: int, end: int, budget: Budget) -> Iterator[Entry]:
    """Yields the entries of the fatbinaries between two bytes of a file. Raises BinaryError."""
    while (begin := _next(content, begin, end)) < end:
        _, _, header, size = _unpacked(_HEADER, content, begin, end)
        at, begin = begin + header, begin + header + size
        if begin > end or header < _HEADER.size:
            raise BinaryError(f"cut: a fatbinary ends at byte {begin:,}, its section at {end:,}")
        while at < begin:
            kind, _, header, size, stored, _, _, _, capability, _, _, flags, _, plain = _unpacked(
                _ENTRY, content, at, begin
            )
            first, at = at + header, at + header + size
            if at > begin or header < _ENTRY.size or stored > size:
                raise BinaryError(f"cut: an entry ends at byte {at:,}, its fatbinary at {begin:,}")
            plain = plain if flags & (_LZ4 | _ZSTD) else 0
            budget.take(plain or size)
            suffix = "".join(letter for flag, letter in _SUFFIXES.items() if flags & flag)
            arch = f"{'sm' if kind == CUBIN else 'compute'}_{capability}{suffix}"
            yield Entry(kind, arch, first, first + (stored or size), flags, plain)


def _next(content: Bytes, begin: int, end: int) -> int:
    """Returns where the next fatbinary begins: they are aligned, with zeros between them."""
    at = content.find(MAGIC, begin, end)
    at = end if at < 0 else at
    if content[begin:at].strip(b"\0"):
        raise BinaryError(f"no fatbinary at byte {begin:,}, where one was expected")
    return at


def _unpacked(of: struct.Struct, content: Bytes, begin: int, end: int) -> tuple[int, ...]:
    if begin + of.size > end:
        raise BinaryError(f"cut: a header of {of.size} bytes begins at byte {begin:,} of {end:,}")
    return of.unpack(content[begin : begin + of.size])


@cache
def _lz4() -> Callable[[bytes, int], bytes]:
    try:
        from lz4 import block
    except ImportError:
        raise BinaryError(f"its code is compressed by LZ4: {_INSTALL}") from None
    return lambda stored, size: block.decompress(stored, uncompressed_size=size)


@cache
def _zstd() -> Callable[[bytes, int], bytes]:
    try:
        from compression import zstd  # from Python 3.14 on
    except ImportError:
        pass
    else:
        return lambda stored, size: zstd.ZstdDecompressor().decompress(stored, size)
    try:
        import zstandard
    except ImportError:
        raise BinaryError(f"its code is compressed by Zstandard: {_INSTALL}") from None
    # A stream gives what it was asked for, whatever its frame says of its size.
    return lambda stored, size: zstandard.ZstdDecompressor().stream_reader(stored).read(size)
