"""The machine code in the libraries of packs: which of it is a kernel's own. Standard library only.

ELF is read as the System V ABI describes it ("ELF Header", "Sections"); a fatbinary holds ELF files
for GPUs, unless nvcc was asked to compress them.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

_HOST = (".text", ".rodata")
FATBIN = ".nv_fatbin"
# Of all kernels of a cubin: constants, initial values.
_SHARED = (".nv.constant3", ".nv.constant4", ".nv.global.init")
_ELF = b"\x7fELF\x02\x01"  # of 64 bits, little-endian
_EM_CUDA = 190
_NOBITS = 8  # the type of sections that take no room in the file
_DIGITS = 16


def host(library: bytes, identities: Iterable[str]) -> Iterator[bytes]:
    """The processor's part of a library, without texts that say what it was built of."""
    for name, section in sections(library):
        if name in _HOST:
            for identity in identities:
                section = section.replace(identity.encode(), b"")
            yield section


def cubins(library: bytes) -> Iterator[bytes]:
    """The ELF files for GPUs in a library, each with what follows it."""
    for name, fatbin in sections(library):
        place = fatbin.find(_ELF) if name == FATBIN else -1
        while place >= 0:
            (machine,) = struct.unpack_from("<H", fatbin, place + 0x12)
            if machine == _EM_CUDA:
                yield fatbin[place:]
            place = fatbin.find(_ELF, place + 1)


def sections(elf: bytes) -> Iterator[tuple[str, bytes]]:
    """The sections of an ELF file by name."""
    (headers,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    entries = [struct.unpack_from("<IIQQQQ", elf, headers + i * size) for i in range(count)]
    names = entries[names_index][4]
    for name, kind, _, _, offset, length in entries:
        if kind != _NOBITS:
            text = elf[names + name : elf.index(b"\0", names + name)].decode()
            yield text, elf[offset : offset + length]


def _capability(cubin: bytes) -> int:
    """90 for sm_90 and sm_90a. The flags of CUDA 13's ABI have it in their second byte, those of
    earlier ones in their first."""
    flags: int = struct.unpack_from("<I", cubin, 0x30)[0]
    return flags >> (8 if cubin[8] >= 8 else 0) & 0xFF


def of_cpu_kernels(library: Path, identities: Iterable[str]) -> str:
    """The hash of a library's code for processors: that of all its CPU kernels, which are compiled
    into one another."""
    digest = hashlib.sha256()
    for part in host(library.read_bytes(), identities):
        digest.update(part)
    return digest.hexdigest()[:_DIGITS]


def of_cuda_kernels(
    library: Path, key_of: Callable[[str], str | None]
) -> dict[tuple[str, int], str]:
    """The hashes of the code of CUDA kernels, by key and compute capability: of the instructions
    and constants of all functions of a key, of the device functions beside them and of what they
    share. Empty if the code is compressed.

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
        for key, found in own.items():
            parts.setdefault((key, _capability(cubin)), []).extend([*found, shared])
    return {
        of: hashlib.sha256(b"".join(sorted(found))).hexdigest()[:_DIGITS]
        for of, found in parts.items()
    }
