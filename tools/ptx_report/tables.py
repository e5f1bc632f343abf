"""ptxas.csv, the table that a build writes beside its logs and its libraries: the spills of a
library's kernels, and the compiler and the code of a log's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from codegen.core.packs import PACK_JSON
from codegen.core.ptxas_rows import Row, read_csv

_NAME = "ptxas.csv"
# What a build knows of a kernel and neither its log nor its library says.
_TAKEN = ("toolchain", "code", "object_key")
# What a library does not say either.
_OF_LIBRARIES = (*_TAKEN, "spill_stores", "spill_loads", "barriers", "compile_time_ms", "c75")
_COMPARED = ("used_registers", "stack_frame", "spill_stores", "spill_loads")


def of_library(path: Path) -> Path | None:
    """Returns the table of the pack, installed or in its build folder, that holds a library."""
    table = path.parent / _NAME
    return table if (path.parent / PACK_JSON).is_file() and table.is_file() else None


def completed(rows: Iterable[Row], table: Path) -> list[Row]:
    """Returns the rows with what the table says of the same kernels.

    A row whose figures the table contradicts is of another build and stays as it is. So does one
    whose symbol the table has several times with different values. Raises ReportError.
    """
    by_name: dict[tuple[str, str | None], list[Row]] = defaultdict(list)
    for row in read_csv(table):
        by_name[row.symbol, row.arch].append(row)
    return [_completed(row, by_name[row.symbol, row.arch]) for row in rows]


def _completed(row: Row, candidates: Iterable[Row]) -> Row:
    names = _OF_LIBRARIES if row.kind == "object" else _TAKEN
    same = [
        other
        for other in candidates
        if (row.kind == "object" or (other.kind, other.source) == (row.kind, row.source))
        and all(
            None in (pair := (getattr(row, name), getattr(other, name))) or pair[0] == pair[1]
            for name in _COMPARED
        )
    ]
    lacking = [name for name in names if getattr(row, name) in (None, ())]
    values = {tuple(getattr(other, name) for name in lacking) for other in same}
    if len(values) != 1:
        return row
    return row._replace(**dict(zip(lacking, values.pop(), strict=True)))
