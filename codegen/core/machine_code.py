"""The machine code in the libraries of packs, separated by kernel. Standard library only.

A fatbinary holds ELF files for GPUs, unless nvcc was asked to compress them.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from codegen.core import elf
from codegen.core.elf import Elf

FATBIN = ".nv_fatbin"
# Sections that all kernels of a cubin share: constants, initial values.
_SHARED = (".nv.constant3", ".nv.constant4", ".nv.global.init")
_UNWIND = 0x70000001  # x86-64's own type of .eh_frame
_CODE = (elf.PROGBITS, elf.INIT_ARRAY, elf.FINI_ARRAY, elf.RELR, _UNWIND)
_SYMBOL = 24  # bytes of a symbol in its table
_DIGITS = 16


def host(library: bytes, identities: Iterable[str]) -> Iterator[bytes]:
    """Returns the processor's part of a library, as `host_sections` has it."""
    return (content for _, content in host_sections(library, identities))


def host_sections(library: bytes, identities: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Returns the processor's part of a library by section, without texts that say how it was
    built: the bytes that are loaded, and those that the loader writes: addresses, also of functions
    of other libraries."""
    file = Elf(library)
    for section in file.sections:
        if not section.flags & elf.ALLOC or section.name == FATBIN:
            continue
        content = file.read(section)
        if section.kind == elf.RELA:
            symbols = file.sections[section.link]
            table, names = file.read(symbols), file.read(file.sections[symbols.link])
            for place, info, addend in struct.iter_unpack("<QQq", content):
                symbol = (info >> 32) * _SYMBOL
                name, value = struct.unpack_from("<I4xQ", table, symbol)
                text = names[name : names.index(b"\0", name)]
                address = (place, info & 0xFFFFFFFF, text, value, addend)
                yield section.name, b"%d %d %s %d %d\n" % address
        elif section.kind in _CODE:
            for identity in identities:
                content = content.replace(identity.encode(), b"")
            yield section.name, content


def cubins(library: bytes) -> Iterator[bytes]:
    """Returns the ELF files for GPUs in a library, each with the bytes that follow it."""
    for name, fatbin in sections(library):
        place = fatbin.find(elf.MAGIC_64) if name == FATBIN else -1
        while place >= 0:
            (machine,) = struct.unpack_from("<H", fatbin, place + 0x12)
            if machine == elf.EM_CUDA:
                yield fatbin[place:]
            place = fatbin.find(elf.MAGIC_64, place + 1)


def sections(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Returns the sections of an ELF file that take room in it, by name."""
    file = Elf(content)
    return ((s.name, file.read(s)) for s in file.sections if s.kind != elf.NOBITS)


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
