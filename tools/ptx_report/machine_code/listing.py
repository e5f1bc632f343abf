"""The functions of what `nvdisasm -c` prints of a cubin."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

_ARCH = re.compile(r"\t\.target\s+(sm_\w+)")
# /*4fc0*/  @!P0 LDGSTS.E.128 [R99], desc[UR6][R20.64], !P1 ;
_LINE = re.compile(
    r"^(?:"
    r"\t\.section\t\.text\.(?P<section>[^\",]+),"
    r"|\s*\{?\s*/\*(?P<address>[0-9a-f]{4,})\*/\s+(?:@(?P<guard>!?U?P\w+)\s+)?"
    r"(?P<operation>[A-Z][\w.]*)(?:\s+(?P<operands>[^;]*?))?\s*;"
    r"|(?P<label>[\w.$]+):$"
    r"|\s+\.other\s+(?P<entry>[^,\s]+),@\"STO_CUDA_ENTRY"
    r"|\s*//## File \"(?P<file>[^\"]*)\", line (?P<number>\d+)"
    r")",
    re.MULTILINE,
)


class Instruction(NamedTuple):
    """An instruction, as it is printed."""

    address: str  # hexadecimal
    guard: str  # the predicate that it depends on, !P0, or nothing
    operation: str
    operands: str
    source: str  # file:line, if the code was compiled with -lineinfo

    def __str__(self) -> str:
        where = f" ({self.source})" if self.source else ""
        return f"{self.operation} {self.operands}".rstrip() + f" at 0x{self.address}{where}"


@dataclass
class Function:
    """A section of code: a kernel with the functions that only it calls, or a device function."""

    arch: str
    symbol: str
    is_kernel: bool = False
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)  # indices of instructions


def functions(text: str) -> Iterator[Function]:
    """Yields the functions of a cubin's listing."""
    arch = match[1] if (match := _ARCH.search(text)) else ""
    function: Function | None = None
    source = ""
    for match in _LINE.finditer(text):
        section, address, guard, operation, operands, label, entry, file, number = match.groups()
        if section is not None:
            if function is not None:
                yield function
            function, source = Function(arch, section), ""
        elif function is None:
            continue
        elif address is not None:
            function.instructions.append(
                Instruction(address, guard or "", operation, operands or "", source)
            )
        elif label is not None:
            function.labels.setdefault(label, len(function.instructions))
        elif file is not None:
            source = f"{file}:{number}"
        elif entry == function.symbol:
            function.is_kernel = True
    if function is not None:
        yield function
