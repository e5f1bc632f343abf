"""A kernel's architectures, or toolkits, side by side, and which of them is out of line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from statistics import median_high, median_low
from typing import NamedTuple

from codegen.core.ptxas_rows import Row

_KINDS = ("kernel", "object")  # whose columns are compared
# From these ratios on registers and bytes are out of line: a compiler chooses others for each
# architecture. Of memory, whatever the others do not need is.
_RATIOS = (1.5, 2.0)


class OutOfLine(NamedTuple):
    """A figure of columns that is unlike most others'."""

    weight: tuple[float, float, float]  # memory's, registers', bytes'; the greater, the graver
    columns: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{', '.join(self.columns)}: {self.text}"


@dataclass(frozen=True)
class Kernel:
    """A kernel's rows by column, such as their architecture: of several rows of one, the worst."""

    name: str
    rows: Mapping[str, Row]
    ratios: tuple[float, float]  # from which registers and bytes are out of line
    columns: Sequence[str] = ()  # where a kernel is expected

    @cached_property
    def out_of_line(self) -> list[OutOfLine]:
        """Returns the columns that are most out of line in each figure, the gravest figure
        first: before all, what is wrong, incomplete or absent, and notes that others do not
        have."""
        notes = {column: "; ".join(row.remarks) for column, row in self.rows.items()}
        is_whole = not any(row.incomplete for row in self.rows.values())
        absent = tuple(column for column in self.columns if is_whole and column not in self.rows)
        is_bad = any(row.incomplete or row.unwritten for row in self.rows.values())
        texts = set(notes.values()) if is_bad or len(set(notes.values())) > 1 else ()
        found = [
            *(
                OutOfLine((inf, 0, 0), tuple(c for c in notes if notes[c] == text), text)
                for text in sorted(filter(None, texts))
            ),
            *([OutOfLine((inf, 0, 0), absent, "no such kernel")] if absent else []),
            *self._most("bytes of stack or spilled", memory, _more, lambda by: (by, 0, 0)),
            *self._most("bytes of stack", _unspilled_stack, _more, lambda by: (by, 0, 0)),
            *self._most(
                "registers",
                lambda row: row.used_registers,
                _ratio(self.ratios[0]),
                lambda by: (0, by, 0),
            ),
            *self._most(
                "bytes of code",
                lambda row: row.code_bytes,
                _ratio(self.ratios[1]),
                lambda by: (0, 0, by),
            ),
        ]
        return sorted(found, key=lambda one: one.weight, reverse=True)

    def _most(
        self,
        what: str,
        figure: Callable[[Row], int | None],
        distance: Callable[[int, list[int]], tuple[float, int]],
        weight: Callable[[float], tuple[float, float, float]],
    ) -> Iterator[OutOfLine]:
        values = {
            column: value for column, row in self.rows.items() if (value := figure(row)) is not None
        }
        if len(set(values.values())) < 2:
            return
        distances = {
            column: distance(value, [other for of, other in values.items() if of != column])
            for column, value in values.items()
        }
        by, other = max(distances.values())
        if by:
            columns = tuple(c for c in self.rows if distances.get(c) == (by, other))
            yield OutOfLine(weight(by), columns, f"{values[columns[0]]:,} {what}, not {other:,}")


def _more(value: int, others: list[int]) -> tuple[float, int]:
    """Returns by how much a value is more than half the others, and what they are."""
    other = median_low(others)
    return max(value - other, 0), other


def _ratio(least: float) -> Callable[[int, list[int]], tuple[float, int]]:
    """Returns a distance: by which factor a value is more, or less, than most others."""

    def distance(value: int, others: list[int]) -> tuple[float, int]:
        low, high = median_low(others), median_high(others)
        other = high if value > high else low
        ratio = max(value, other, 1) / max(min(value, other), 1)
        return (ratio if ratio >= least and not low <= value <= high else 0), other

    return distance


def side_by_side(
    rows: Iterable[tuple[str, str, Row]],
    ratios: tuple[float, float] = _RATIOS,
    columns: Sequence[str] = (),
) -> list[Kernel]:
    """Returns the kernels of rows, each with its name and column; what is out of line first.

    Args:
        rows: a kernel's name, its column, its row.
        ratios: from which registers and bytes are out of line.
        columns: where each kernel is expected.
    """
    by_name: dict[str, dict[str, Row]] = {}
    for name, column, row in rows:
        if row.kind in _KINDS and column:
            of_name = by_name.setdefault(name, {})
            if column not in of_name or _worse(row) > _worse(of_name[column]):
                of_name[column] = row
    kernels = [Kernel(name, of_name, ratios, columns) for name, of_name in by_name.items()]
    return sorted(kernels, key=_first)


def memory(row: Row) -> int | None:
    """Returns the spilled bytes, of a binary the stack, in which they are."""
    return row.stack_frame if row.spill_bytes is None else row.spill_bytes


def _unspilled_stack(row: Row) -> int | None:
    return row.stack_frame if row.spill_bytes == 0 else None


def _worse(row: Row) -> tuple[int, int, int]:
    return memory(row) or 0, row.used_registers or 0, row.code_bytes or 0


def _first(kernel: Kernel) -> tuple[object, ...]:
    weight = kernel.out_of_line[0].weight if kernel.out_of_line else (0, 0, 0)
    return *(-part for part in weight), kernel.name
