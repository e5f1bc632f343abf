"""Machine code that reads a uniform register which none of its instructions writes.

ptxas has made such code (docs/ptx-report.md, "Wrong machine code"); all that it prints of the
kernel looks as usual.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

_ARCH = re.compile(r"\s*code for (sm_\w+)")
_FUNCTION = re.compile(r"\s*Function : (\S+)")
# /*4fc0*/  @!P0 LDGSTS.E.128 [R99], desc[UR6][R20.64], !P1 ;
_INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?((\S+)\s+(.*?))\s*;")
_PREDICATE = re.compile(r"!?U?P[0-7T]")
_DESTINATION = re.compile(r"UR(\d+)(?:\.\w+)*")
_READ = re.compile(r"\b(g?desc\[)?UR(\d+)\b")  # a descriptor is of 64 bits, two registers
_WIDE = re.compile(r"64|WIDE")


@dataclass
class Function:
    """The uniform registers of a function, as numbers."""

    arch: str
    symbol: str
    written: set[int] = field(default_factory=set)
    # Registers that an instruction reads: how often, and the first such instruction, its place.
    reads: dict[tuple[int, ...], tuple[int, str]] = field(default_factory=dict)

    @property
    def unwritten(self) -> tuple[int, str]:
        """Returns how many instructions read a register that none writes, and the first of them
        after the names of those registers."""
        bad = {
            registers: missing
            for registers in self.reads
            if (missing := [register for register in registers if register not in self.written])
        }
        if not bad:
            return 0, ""
        first, missing = next(iter(bad.items()))
        names = " ".join(f"UR{register}" for register in missing)
        return sum(
            self.reads[registers][0] for registers in bad
        ), f"{names}: {self.reads[first][1]}"

    def add(self, place: str, text: str, operation: str, operands: str) -> None:
        """Takes an instruction that names uniform registers.

        Its destination comes first, or behind predicates that it writes as well. What only reads a
        register there (BRA.DIV) counts as writing it: a fault may be missed, none is invented.
        """
        parts = [part.strip() for part in operands.split(",")]
        at = next((i for i, part in enumerate(parts) if not _PREDICATE.fullmatch(part)), 0)
        destination = _DESTINATION.fullmatch(parts[at])
        if destination and "SETP" not in operation:
            first = int(destination[1])
            width = 4 if "128" in operation else 2 if _WIDE.search(operation) else 1
            self.written.update(range(first, first + width))
            parts[at] = ""
        found: dict[int, None] = {}
        for descriptor, number in _READ.findall(",".join(parts)):
            found.update(dict.fromkeys(range(int(number), int(number) + (2 if descriptor else 1))))
        if found:
            times, sample = self.reads.get(tuple(found), (0, f"{text} at 0x{place}"))
            self.reads[tuple(found)] = times + 1, sample


def functions(lines: Iterable[str]) -> Iterator[Function]:
    """Yields the functions of what `cuobjdump -sass` prints."""
    arch = ""
    function: Function | None = None
    for line in lines:
        if match := _FUNCTION.match(line):
            if function is not None:
                yield function
            function = Function(arch, match[1])
        elif match := _ARCH.match(line):
            arch = match[1]
        elif function is not None and "UR" in line and (match := _INSTRUCTION.match(line)):
            function.add(*match.groups())
    if function is not None:
        yield function
