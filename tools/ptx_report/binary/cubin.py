"""The kernels of a cubin: an ELF file whose sections of a kernel carry its name.

What `cuobjdump --dump-resource-usage` prints stands in sizes of sections and in attributes: those
of `.nv.info` are of all kernels, each with the index of its symbol, those of `.nv.info.<kernel>`
of one.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterator

from codegen.core.elf import EM_CUDA, Elf, ElfError, Section
from codegen.core.ptxas_rows import Row

from .fatbin import BinaryError

_TEXT, _INFO = ".text.", ".nv.info."
# Sections of a kernel, and what cuobjdump calls them; constant0 has a column of its own.
_OTHERS = {"local": "local", **{f"constant{i}": f"constant[{i}]" for i in range(1, 18)}}
_ATTRIBUTE = struct.Struct("<BBH")  # format, attribute, value
_SIZED = 4  # the format whose value is the size of what follows
_BARRIERS, _REGISTERS, _STACK = 0x4C, 0x2F, 0x12
_UNKNOWN = 0xFFFFFFFF  # the stack of a kernel that calls itself, of which cuobjdump says UNKNOWN
_OF_SYMBOL = struct.Struct("<II")
_TOOL = re.compile(rb"release [\d.]+, V(\d+\.\d+\.\d+)")
_TARGET = re.compile(rb"-arch[ =](sm_\w+)")
_ACCELERATED = 0x800  # sm_90a, of the older ABI
_OLD_ABI = 7


def kernels(content: bytes, arch: str | None, source: str) -> Iterator[Row]:
    """Yields the rows of the functions of a cubin. Raises BinaryError.

    Args:
        content: the cubin's bytes.
        arch: sm_90a, if what holds the cubin says so.
        source: what to call its file.
    """
    try:
        elf = Elf(content)
        if elf.machine != EM_CUDA:
            raise BinaryError(f"an ELF file for machine {elf.machine}, not for GPUs")
        yield from _kernels(elf, arch, source)
    except ElfError as error:
        raise BinaryError(str(error)) from None


def _kernels(elf: Elf, arch: str | None, source: str) -> Iterator[Row]:
    texts: list[Section] = []
    sizes: dict[tuple[str, str], int] = {}  # by kind of section, constant0, and kernel
    own: dict[str, Section] = {}  # .nv.info of a kernel
    registers: dict[int, int] = {}
    stacks: dict[int, int | None] = {}
    note = b""
    for section in elf.sections:
        name = section.name
        if name.startswith(_TEXT):
            texts.append(section)
        elif name.startswith(_INFO):
            own[name[len(_INFO) :]] = section
        elif name == ".nv.info":
            registers, stacks = _of_symbols(elf.read(section))
        elif name.startswith(".nv."):
            kind, _, kernel = name[4:].partition(".")
            sizes[kind, kernel] = section.size
        elif name == ".note.nv.tkinfo":
            note = elf.read(section)
    tool, target = _TOOL.search(note), _TARGET.search(note)
    toolchain = f"nvcc {tool[1].decode()}" if tool else None
    arch = arch or (target[1].decode() if target else _arch(elf))
    others = sorted({kind for kind, kernel in sizes if kernel and kind in _OTHERS})
    room = len(elf.content)  # sections do not overlap
    code = memoryview(elf.content)
    for text in texts:
        room -= text.size
        if room < 0:
            raise BinaryError("cut: its functions take more bytes than it has")
        begin, end = elf.bounds(text)
        name = text.name[len(_TEXT) :]
        symbol = text.info & 0xFFFFFF
        is_old = elf.abi_version <= _OLD_ABI
        yield Row(
            name,
            "object",
            arch,
            stack_frame=stacks.get(symbol, 0),
            used_registers=registers.get(symbol, text.info >> 24 if is_old else None),
            barriers=text.flags >> 20 & 0x7F if is_old else _barriers(elf, own.get(name)),
            smem=sizes.get(("shared", name), 0),
            cmem0=sizes.get(("constant0", name)),
            other=tuple(
                (_OTHERS[kind], str(size)) for kind in others if (size := sizes.get((kind, name)))
            ),
            source=source,
            toolchain=toolchain,
            code_bytes=end - begin,
            machine_code=hashlib.sha1(code[begin:end], usedforsecurity=False).hexdigest()[:16],
        )


def _arch(elf: Elf) -> str:
    """Returns the architecture that the flags name: in their second byte in CUDA 13's ABI, in their
    first byte before."""
    if elf.abi_version > _OLD_ABI:
        return f"sm_{elf.flags >> 8 & 0xFF}"
    return f"sm_{elf.flags & 0xFF}{'a' if elf.flags & _ACCELERATED else ''}"


def _of_symbols(info: bytes) -> tuple[dict[int, int], dict[int, int | None]]:
    """Returns registers and bytes of stack, by the index of a function's symbol."""
    registers: dict[int, int] = {}
    stacks: dict[int, int | None] = {}
    for code, _, value in _attributes(info):
        if code in (_REGISTERS, _STACK) and len(value) == _OF_SYMBOL.size:
            symbol, figure = _OF_SYMBOL.unpack(value)
            if code == _REGISTERS:
                registers[symbol] = figure
            else:
                stacks[symbol] = None if figure == _UNKNOWN else figure
    return registers, stacks


def _barriers(elf: Elf, info: Section | None) -> int:
    """Returns the named barriers of a kernel, which its own attributes count."""
    content = elf.read(info) if info else b""
    found = _attributes(content) if _BARRIERS in content else ()  # any byte of an attribute
    return next((figure & 0xFF for code, figure, _ in found if code == _BARRIERS), 0)


def _attributes(info: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yields a section's attributes: the code, the value in the header, the bytes after it."""
    at = 0
    while at + _ATTRIBUTE.size <= len(info):
        form, code, figure = _ATTRIBUTE.unpack_from(info, at)
        at += _ATTRIBUTE.size
        end = at + (figure if form == _SIZED else 0)
        yield code, figure, info[at:end]
        at = end
