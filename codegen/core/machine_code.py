"""The machine code in the libraries of packs, separated by kernel. Standard library only.

ELF is read as the System V ABI describes it ("ELF Header", "Sections"); a fatbinary holds ELF files
for GPUs, unless nvcc was asked to compress them.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

FATBIN = ".nv_fatbin"
# Sections that all kernels of a cubin share: constants, initial values.
_SHARED = (".nv.constant3", ".nv.constant4", ".nv.global.init")
_ELF = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_EM_CUDA = 190
# Types of sections: a program's data, and sections without room in the file.
_PROGBITS, _RELA, _NOBITS, _INIT_ARRAY, _FINI_ARRAY, _RELR = 1, 4, 8, 14, 15, 19
_UNWIND = 0x70000001  # x86-64's own type of .eh_frame
_ALLOC = 2  # the flag of sections that are loaded
_SYMBOL = 24  # bytes of a symbol in its table
_DIGITS = 16


def host(library: bytes, identities: Iterable[str]) -> Iterator[bytes]:
    """Returns the processor's part of a library, without texts that say how it was built: the bytes
    that are loaded, and those that the loader writes: addresses, also of functions of other
    libraries."""
    library_sections = list(_sections(library))
    for section in library_sections:
        if not section.flags & _ALLOC or section.name == FATBIN:
            continue
        if section.kind == _RELA:
            symbols = library_sections[section.link]
            names = library_sections[symbols.link].content
            for place, info, addend in struct.iter_unpack("<QQq", section.content):
                symbol = (info >> 32) * _SYMBOL
                name, value = struct.unpack_from("<I4xQ", symbols.content, symbol)
                text = names[name : names.index(b"\0", name)]
                yield b"%d %d %s %d %d\n" % (place, info & 0xFFFFFFFF, text, value, addend)
        elif section.kind in (_PROGBITS, _INIT_ARRAY, _FINI_ARRAY, _RELR, _UNWIND):
            content = section.content
            for identity in identities:
                content = content.replace(identity.encode(), b"")
            yield content


def cubins(library: bytes) -> Iterator[bytes]:
    """Returns the ELF files for GPUs in a library, each with the bytes that follow it."""
    for name, fatbin in sections(library):
        place = fatbin.find(_ELF) if name == FATBIN else -1
        while place >= 0:
            (machine,) = struct.unpack_from("<H", fatbin, place + 0x12)
            if machine == _EM_CUDA:
                yield fatbin[place:]
            place = fatbin.find(_ELF, place + 1)


class _Section(NamedTuple):
    name: str
    kind: int
    flags: int
    content: bytes
    link: int  # the index of the section that this one refers to


def sections(elf: bytes) -> Iterator[tuple[str, bytes]]:
    """Returns the sections of an ELF file that take room in it, by name."""
    return ((s.name, s.content) for s in _sections(elf) if s.kind != _NOBITS)


def _sections(elf: bytes) -> Iterator[_Section]:
    (headers,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    entries = [struct.unpack_from("<IIQQQQI", elf, headers + i * size) for i in range(count)]
    names = entries[names_index][4]
    for name, kind, flags, _, offset, length, link in entries:
        text = elf[names + name : elf.index(b"\0", names + name)].decode()
        content = b"" if kind == _NOBITS else elf[offset : offset + length]
        yield _Section(text, kind, flags, content, link)


def _capability(cubin: bytes) -> int:
    """Returns 90 for sm_90 and sm_90a. The flags of CUDA 13's ABI have the capability in their
    second byte, those of earlier ABIs in their first."""
    flags: int = struct.unpack_from("<I", cubin, 0x30)[0]
    return flags >> (8 if cubin[8] >= 8 else 0) & 0xFF


def of_cpu_kernels(library: Path, identities: Iterable[str]) -> str:
    """Returns the hash of a library's code for processors: of all its CPU kernels, which are
    compiled into one another."""
    digest = hashlib.sha256()
    for part in host(library.read_bytes(), identities):
        digest.update(part)
    return digest.hexdigest()[:_DIGITS]


def of_cuda_kernels(
    library: Path, key_of: Callable[[str], str | None]
) -> dict[tuple[str, int], str]:
    """Returns the hashes of the code of CUDA kernels, by key and compute capability: of the
    instructions and constants of all functions of a key, of the device functions beside them and of
    the data they share. Empty if the code is compressed.

    Args:
        library: a pack's.
        key_of: the key of a kernel's symbol; None for device functions.
    """
    parts: dict[tuple[str, int], list[bytes]] = {}
    for cubin in cubins(library.read_bytes()):
        own: dict[str, list[bytes]] = {}
        shared = b""
        for name, section in sections(cubin):
            kind, _, symbol = name.removeprefix(".nv").removeprefix(".").partition(".")
            if name in _SHARED or (kind == "text" and symbol and key_of(symbol) is None):
                shared += name.encode() + section
            elif symbol and (kind == "text" or kind.startswith("constant")):
                key = key_of(symbol)
                if key is not None:
                    own.setdefault(key, []).append(name.encode() + section)
        for key, codes in own.items():
            parts.setdefault((key, _capability(cubin)), []).extend([*codes, shared])
    return {
        of: hashlib.sha256(b"".join(sorted(codes))).hexdigest()[:_DIGITS]
        for of, codes in parts.items()
    }
