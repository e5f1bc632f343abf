"""What a built kernel is made of: its machine code, its compiler, and what ptxas said of it."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping

from codegen.packs import Pack
from codegen.ptxas.rows import read_csv

from ..ptx_report.gate import over_budget
from .errors import TuningError

_HOST = (".text", ".rodata")
_FATBIN = ".nv_fatbin"
# Of a cubin: instructions, constants, what a launch takes (registers, parameters), and initial
# values; not the names and lines of its sources.
_DEVICE = (".text", ".nv.constant", ".nv.info", ".nv.global")
_ELF = b"\x7fELF\x02\x01"  # of 64 bits, little-endian
_EM_CUDA = 190
_NOBITS = 8  # the type of sections that take no room in the file


def code_hash(pack: Pack, family: str) -> str:
    """The hash of the machine code of a pack of one kernel: what ptxas made, and the host's or the
    CPU's part.

    Other text of the library, such as the hash of its sources, does not count. Raises TuningError
    if the device's code is compressed.
    """
    digest = hashlib.sha256()
    identities = (pack.fingerprint, *pack.generated.values())
    library = pack.library(family)
    for name, section in _sections(library.read_bytes()):
        if name in _HOST:
            for identity in identities:
                section = section.replace(identity.encode(), b"")
            digest.update(section)
        elif name == _FATBIN:
            cubins = list(_cubins(section))
            if not cubins:  # nvcc 13.0 compresses them if it is asked to
                raise TuningError(
                    f"{library}: its device code is compressed, so that it cannot be told from "
                    "another's: build it without --compress-mode (CUDAFLAGS)"
                )
            for cubin in cubins:
                for kind, part in _sections(cubin):
                    if kind.startswith(_DEVICE):
                        digest.update(part)
    return digest.hexdigest()[:16]


def _cubins(fatbin: bytes) -> Iterator[bytes]:
    """The ELF files for GPUs in a fatbinary, each with what follows it."""
    place = fatbin.find(_ELF)
    while place >= 0:
        (machine,) = struct.unpack_from("<H", fatbin, place + 0x12)
        if machine == _EM_CUDA:
            yield fatbin[place:]
        place = fatbin.find(_ELF, place + 1)


def _sections(elf: bytes) -> Iterator[tuple[str, bytes]]:
    """The sections of an ELF file by name (System V ABI, "ELF Header", "Sections")."""
    (headers,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    entries = [struct.unpack_from("<IIQQQQ", elf, headers + i * size) for i in range(count)]
    names = entries[names_index][4]
    for name, kind, _, _, offset, length in entries:
        if kind != _NOBITS:
            text = elf[names + name : elf.index(b"\0", names + name)].decode()
            yield text, elf[offset : offset + length]


def toolchain(pack: Pack) -> str:
    """The compiler of a pack's kernels: ``nvcc 13.0.88``."""
    name = "nvcc" if "nvcc" in pack.settings else "c++"
    return f"{name} {pack.settings[name]}"


def offence(pack: Pack, key: str, budget: Mapping[str, int]) -> str | None:
    """Why ptxas's figures rule a kernel out: spills or more beyond its target's budget, or a note
    of C75xx, which says that wgmma is serialised. None if nothing does."""
    if not pack.ptxas.exists():  # on the CPU
        return None
    target = key.rpartition(".")[0]
    for row in read_csv(pack.ptxas):
        if row.kernel_config == key or row.kind != "kernel":  # it, or what it calls
            for reason in over_budget(row, {"c75": 0, **budget}, target):
                return f"ptxas: {reason}"
    return None
