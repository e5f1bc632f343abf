"""ptxas.csv, the table that a build writes beside its logs and its libraries: the spills of a
library's kernels, and the compiler and the code of a log's."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from codegen.core.packs import PACK_JSON
from codegen.core.ptxas_rows import Row, read_csv

_NAME = "ptxas.csv"
_LOGS = "ptxas"  # the folder of a build's logs, beside the table
# Columns that only a build knows: neither its log nor its library has them.
_TAKEN = ("toolchain", "code", "object_key")
# Columns that a library lacks besides.
_OF_LIBRARIES = (*_TAKEN, "spill_stores", "spill_loads", "barriers", "compile_time_ms", "c75")
_COMPARED = ("used_registers", "stack_frame", "spill_stores", "spill_loads")


def of_library(path: Path) -> Path | None:
    """Returns the table of the pack, installed or in its build folder, that holds a library."""
    table = path.parent / _NAME
    return table if (path.parent / PACK_JSON).is_file() and table.is_file() else None


def of_log(path: Path) -> Path | None:
    """Returns the table of the build that wrote a log."""
    for folder in path.absolute().parents:
        if folder.name == _LOGS and (table := folder.with_name(_NAME)).is_file():
            return table
    return None


def logs_of(table: Path) -> Path:
    """Returns the folder of a table's logs, to which its sources are relative."""
    return table.with_name(_LOGS)


class Table:
    """A build's rows. Raises ReportError if the file cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: dict[tuple[str, str | None], list[Row]] = defaultdict(list)
        for row in read_csv(path):
            self._rows[row.symbol, row.arch].append(row)
        self._sources = {row.source for rows in self._rows.values() for row in rows}
        self._written = path.stat().st_mtime

    def is_left_over(self, log: Path, source: str) -> bool:
        """Returns whether a log is of a source that an earlier build had: the build, which ended
        after it was written, took no row of it."""
        return source not in self._sources and log.stat().st_mtime <= self._written

    def completed(self, row: Row) -> Row:
        """Returns a row with what the table says of the same kernel.

        A row whose figures the table contradicts is of another build and stays as it is. So does a
        row whose symbol the table has several times with different values.
        """
        is_object = row.kind == "object"
        same = [
            other
            for other in self._rows.get((row.symbol, row.arch), ())
            if (is_object or (other.kind, other.source) == (row.kind, row.source))
            and all(_agree(getattr(row, name), getattr(other, name)) for name in _COMPARED)
        ]
        names = _OF_LIBRARIES if is_object else _TAKEN
        lacking = [name for name in names if getattr(row, name) in (None, ())]
        values = {tuple(getattr(other, name) for name in lacking) for other in same}
        if len(values) != 1:
            return row
        return row._replace(**dict(zip(lacking, values.pop(), strict=True)))


def _agree(one: object, other: object) -> bool:
    return one is None or other is None or one == other
