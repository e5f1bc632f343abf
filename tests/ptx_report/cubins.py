"""Cubins, libraries and fatbinaries for tests, of no more than what ptx-report reads."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence

from codegen.core.elf import EM_CUDA, NOBITS, PROGBITS
from codegen.core.ptxas_rows import Row

HOST = 62  # EM_X86_64
_INFO = 0x70000000
_FUNCTION = re.compile(r"\s*Function (\S+):")
_ARCH = re.compile(r"arch = (sm_\w+)")
_FIELD = re.compile(r"([A-Z]+(?:\[\d+\])?):(\d+)")


def elf(sections: Sequence[tuple[str, int, bytes, int]], machine: int, flags: int = 0) -> bytes:
    """An ELF file of sections, each a name, a type, a content and the member `sh_info`."""
    sections = [("", 0, b"", 0), *sections, (".shstrtab", 3, b"", 0)]
    names = b"".join(name.encode() + b"\0" for name, *_ in sections)
    headers, content, at, place = b"", b"", 0, 64
    for name, kind, data, info in sections:
        data = names if name == ".shstrtab" else data
        headers += struct.pack("<IIQQQQIIQQ", at, kind, 0, 0, place, len(data), 0, info, 1, 0)
        at += len(name) + 1
        if kind != NOBITS:
            content += data
            place += len(data)
    identity = b"\x7fELF\x02\x01\x01\x41\x08".ljust(16, b"\0")
    counts = (64, 0, 0, 64, len(sections), len(sections) - 1)
    return (
        struct.pack("<16sHHIQQQIHHHHHH", identity, 2, machine, 1, 0, 0, place, flags, *counts)
        + content
        + headers
    )


def cubin(rows: Iterable[Row], capability: int = 90) -> bytes:
    """A cubin of kernels with the rows' symbols, registers, stack and shared memory."""
    info, sections = b"", []
    for number, row in enumerate(rows, 1):
        info += struct.pack("<BBHII", 4, 0x2F, 8, number, row.used_registers or 0)
        info += struct.pack("<BBHII", 4, 0x12, 8, number, row.stack_frame or 0)
        sections.append((f".text.{row.symbol}", PROGBITS, bytes(row.code_bytes or 16), number))
        if row.smem:
            sections.append((f".nv.shared.{row.symbol}", NOBITS, bytes(row.smem), number))
        if row.cmem0:
            sections.append((f".nv.constant0.{row.symbol}", PROGBITS, bytes(row.cmem0), number))
    return elf([(".nv.info", _INFO, info, 0), *sections], EM_CUDA, capability << 8 | 0x6000002)


def fatbin(*images: tuple[int, int, bytes]) -> bytes:
    """A fatbinary of images, each a kind, a compute capability and a content."""
    entries = b""
    for kind, capability, image in images:
        head = (kind, 0x101, 64, len(image), 0, 0, 8, 1, capability, 0, 0, 0x11, 0, 0)
        entries += struct.pack("<HHIQIIHHIIIQQQ", *head) + image
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries


def library(content: bytes) -> bytes:
    """A shared library that holds fatbinaries."""
    return elf([(".nv_fatbin", PROGBITS, content, 0)], HOST)


def resource_usage(text: str) -> list[Row]:
    """Rows of what `cuobjdump --dump-resource-usage` prints."""
    rows: list[Row] = []
    arch: str | None = None
    symbol = ""
    for line in text.splitlines():
        if match := _ARCH.match(line):
            arch = match[1]
        elif match := _FUNCTION.fullmatch(line):
            symbol = match[1]
        elif symbol and (fields := dict(_FIELD.findall(line))):
            numbers = {name: int(value) for name, value in fields.items()}
            rows.append(
                Row(
                    symbol,
                    "object",
                    arch,
                    stack_frame=numbers.pop("STACK"),
                    used_registers=numbers.pop("REG"),
                    smem=numbers.pop("SHARED"),
                    cmem0=numbers.pop("CONSTANT[0]", None),
                    other=tuple((k.lower(), str(n)) for k, n in sorted(numbers.items()) if n),
                )
            )
            symbol = ""
    return rows
