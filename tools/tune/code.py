"""What a built kernel is made of: its machine code, its compiler, and what ptxas said of it."""

from __future__ import annotations

import csv
import hashlib
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from codegen.packs import Pack

_SECTIONS = (".text", ".rodata")


def code_hash(pack: Pack, family: str, key: str) -> str:
    """The hash of a kernel's machine code: what ptxas made, and the host's or the CPU's part.

    Other text of the library, such as the hash of its sources, does not count.
    """
    digest = hashlib.sha256()
    for row in _rows(pack, key):
        digest.update(f"{row['symbol']} {row['arch']} {row['code']}\n".encode())
    identities = (pack.fingerprint, *pack.generated.values())
    for section in sections(pack.library(family)):
        for identity in identities:
            section = section.replace(identity.encode(), b"")
        digest.update(section)
    return digest.hexdigest()[:16]


def sections(library: Path) -> Iterator[bytes]:
    """The code and the constants of an ELF file of 64 bits, little-endian (System V ABI, "ELF
    Header", "Sections")."""
    data = library.read_bytes()
    (headers,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", data, 0x3A)
    entries = [struct.unpack_from("<IIQQQQ", data, headers + i * size) for i in range(count)]
    names = entries[names_index][4]
    for name, _, _, _, offset, length in entries:
        text = data[names + name : data.index(b"\0", names + name)].decode()
        if text in _SECTIONS:
            yield data[offset : offset + length]


def toolchain(pack: Pack) -> str:
    """The compiler of a pack's kernels: ``nvcc 13.0.88``."""
    name = "nvcc" if "nvcc" in pack.settings else "c++"
    return f"{name} {pack.settings[name]}"


def offence(pack: Pack, key: str, budget: Mapping[str, int]) -> str | None:
    """Why ptxas's figures rule a kernel out: spills or more beyond its target's budget, or a note
    of C75xx, which says that wgmma is serialised. None where nothing does."""
    for row in _rows(pack, key):
        notes = row["c75"].split()
        if len(notes) > budget.get("c75", 0):
            return f"ptxas: {' '.join(notes)}"
        spills = int(row["spill_stores"] or 0) + int(row["spill_loads"] or 0)
        figures = {
            "spill_bytes": spills,
            "stack_bytes": int(row["stack_frame"] or 0),
            "registers": int(row["used_registers"] or 0),
        }
        for name, figure in figures.items():
            if name in budget and figure > budget[name]:
                return f"ptxas: {name} {figure}, the budget is {budget[name]}"
    return None


def _rows(pack: Pack, key: str) -> Iterator[dict[str, str]]:
    """What ptxas.csv says of a kernel and of what it calls; nothing for the CPU."""
    if not pack.ptxas.exists():
        return
    with pack.ptxas.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["kernel_config"] == key or row["kind"] != "kernel":
                yield row
