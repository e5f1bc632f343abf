"""The rows of a report, and their CSV form."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from codegen.core.symbols import KEY, arguments_of_symbol, kernel_of_symbol, key_of_symbol


class ReportError(Exception):
    """Bad input: a sentence for the user, shown without a traceback."""


class Row(NamedTuple):
    """The figures of one function for one architecture.

    None means that the tools do not report a figure: a binary holds no figure of spills, so its
    rows have no spills, whatever their stack is. A zero is a figure.
    """

    symbol: str
    # kernel; function: a device function of its own; link: nvlink's totals; object: of a binary;
    # ptx: a binary's PTX
    kind: str = "kernel"
    arch: str | None = None  # the log's spelling, sm_90a
    stack_frame: int | None = None  # bytes
    spill_stores: int | None = None  # bytes
    spill_loads: int | None = None  # bytes
    used_registers: int | None = None  # per thread
    barriers: int | None = None
    smem: int | None = None  # bytes, static (and reserved, if nvlink adds it)
    cmem0: int | None = None  # bytes
    cumulative_stack: int | None = None  # bytes
    compile_time_ms: float | None = None
    other: tuple[tuple[str, str], ...] = ()  # further fields of the `Used` line, as (name, value)
    # C75xx codes in order; with a `?` if the log does not say which kernel of the unit it means
    c75: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    source: str | None = None  # the object or the log it stands in
    line: int | None = None  # where the record begins in its log
    incomplete: str | None = None  # why some of it is missing
    name: str | None = None  # demangled, for foreign ones
    # the key of the one configuration that its object holds, if the symbol names none
    object_key: str | None = None
    toolchain: str | None = None  # e.g. `nvcc 13.0.88`
    code: str | None = None  # fingerprint of everything that is compiled into it
    # Instructions that read a register which nothing has written, and the first of them; None if
    # the machine code was not read.
    unwritten: int | None = None
    unwritten_at: str | None = None
    code_bytes: int | None = None  # size of the machine code
    ptx_bytes: int | None = None
    machine_code: str | None = None  # hash of its instructions
    stored_bytes: int | None = None  # share of the file's bytes, compressed as they are
    # Instructions that touch registers of an asynchronous product before it is done, as above.
    in_flight: int | None = None
    in_flight_at: str | None = None

    @property
    def kernel_config(self) -> str:
        """Returns the key of our kernels, else the demangled name, else the symbol."""
        return self.key or self.name or self.symbol

    @property
    def key(self) -> str | None:
        """Returns the configuration's key; None for foreign kernels, and for device functions,
        whose figures are not the configuration's."""
        if self.kind == "function":
            return None
        return _named_key(self.symbol) or self.object_key

    @property
    def kernel(self) -> str:
        """Returns the function's own name."""
        return kernel_of_symbol(self.symbol)

    @property
    def arguments(self) -> list[str]:
        """Returns, for our kernels, the template arguments beside the configuration."""
        return arguments_of_symbol(self.symbol, self.key) if self.key else []

    @property
    def spilled(self) -> bool | None:
        """Returns whether registers went to memory; None if the spill line is missing."""
        if self.spill_stores is None and self.spill_loads is None:
            return None
        return bool(self.spill_stores or self.spill_loads)

    @property
    def lacks_spills(self) -> bool:
        """Returns whether spills are unknown: a log lost them, or a binary does not hold them.
        nvlink's totals are of kernels that have a row with spills of their own."""
        return self.spilled is None and self.kind not in ("link", "ptx")

    @property
    def spill_bytes(self) -> int | None:
        """Returns the bytes stored and loaded; None if either is unknown."""
        if self.spill_stores is None or self.spill_loads is None:
            return None
        return self.spill_stores + self.spill_loads

    @property
    def remarks(self) -> tuple[str, ...]:
        """Returns faults of the machine code, the C75xx codes, and the missing figures."""
        return (
            *([f"unwritten {self.unwritten_at}"] if self.unwritten else []),
            *([f"in flight {self.in_flight_at}"] if self.in_flight else []),
            *self.c75,
            *([f"incomplete: {self.incomplete}"] if self.incomplete else []),
        )


@lru_cache(1 << 16)
def _named_key(symbol: str) -> str | None:
    """Returns the key that a symbol names, or is."""
    return key_of_symbol(symbol) or (symbol if KEY.fullmatch(symbol) else None)


# The first fourteen are a contract; the others may grow.
COLUMNS = (
    "kernel_config",
    "spilled",
    "stack_frame",
    "spill_stores",
    "spill_loads",
    "used_registers",
    "arch",
    "barriers",
    "smem",
    "cmem0",
    "cumulative_stack",
    "compile_time_ms",
    "symbol",
    "source",
    "kind",
    "line",
    "incomplete",
    "c75",
    "warnings",
    "other",
    "toolchain",
    "code",
    "unwritten",
    "unwritten_at",
    "code_bytes",
    "ptx_bytes",
    "machine_code",
    "stored_bytes",
    "in_flight",
    "in_flight_at",
)
_SEPARATOR = " | "
# A spreadsheet takes a cell that begins with one of these for a formula, unless it is a number. An
# apostrophe in front makes it text; so that reading is exact, cells that begin so also get an
# apostrophe.
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?")


def _pairs(cell: str) -> tuple[tuple[str, str], ...]:
    items = (item.partition("=") for item in cell.split(_SEPARATOR))
    return tuple((name, text) for name, _, text in items)


# Functions that write the value of a column, and that read its cell.
_TUPLES: dict[str, tuple[Callable[[Any], str], Callable[[str], object]]] = {
    "c75": (" ".join, lambda cell: tuple(cell.split())),
    "warnings": (_SEPARATOR.join, lambda cell: tuple(cell.split(_SEPARATOR))),
    "other": (lambda pairs: _SEPARATOR.join(map("=".join, pairs)), _pairs),
}
_NUMBERS = {int | None: int, float | None: float}
_READERS: dict[str, Callable[[str], object]] = {
    **{n: _NUMBERS[kind] for n, kind in get_type_hints(Row).items() if kind in _NUMBERS},
    **{column: read for column, (_, read) in _TUPLES.items()},
}


def _cell(row: Row, column: str) -> str:
    """Returns a value as a CSV cell; an absent value is empty."""
    value = getattr(row, column)
    if column in _TUPLES:
        return _TUPLES[column][0](value)
    return "" if value is None else str(value)


def _as_text(cell: str) -> str:
    """Returns the cell in a form that no spreadsheet computes."""
    return f"'{cell}" if _FORMULA.match(cell) and not _NUMBER.fullmatch(cell) else cell


def _from_text(cell: str) -> str:
    """Inverts `_as_text`."""
    return cell[1:] if cell.startswith("'") and _as_text(cell[1:]) == cell else cell


def csv_text(rows: Iterable[Row], extra: Iterable[tuple[str, list[str]]] = ()) -> str:
    """Returns CSV with `COLUMNS`, then the `extra` columns, each a name and one cell per row.

    A cell that a spreadsheet would take for a formula has an apostrophe in front; `read_csv` takes
    it away.
    """
    extra = list(extra)
    return table_text(
        [*COLUMNS, *(name for name, _ in extra)],
        (
            [*(_cell(row, column) for column in COLUMNS), *(column[index] for _, column in extra)]
            for index, row in enumerate(rows)
        ),
    )


def table_text(header: Iterable[str], lines: Iterable[Iterable[object]]) -> str:
    """Returns CSV of lines of cells, of which None is empty, in a form that no spreadsheet
    computes."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    for line in lines:
        writer.writerow(_as_text("" if cell is None else str(cell)) for cell in line)
    return out.getvalue()


def read_csv(path: Path) -> list[Row]:
    """Reads the rows of a CSV with at least the columns `kernel_config` and `used_registers`.

    Raises ReportError if the file cannot be read or a cell does not suit its column.
    """
    return parse_csv(_read(path), path)


def parse_csv(text: str, path: Path | str) -> list[Row]:
    """Returns the rows of a CSV's text; errors name `path`."""
    rows = csv.DictReader(io.StringIO(text, newline=""))
    try:
        header = set(rows.fieldnames or ())
        if not {"kernel_config", "used_registers"} <= header:
            raise ReportError(
                f"{path}: not a CSV report: its first line must name the columns kernel_config and "
                "used_registers"
            )
        return [_row(row, path, rows.line_num) for row in rows]
    except csv.Error as error:
        raise ReportError(f"{path}:{rows.line_num}: {error}") from error


def read_json(path: Path) -> list[Row]:
    """Returns the rows that `ptx-report --json` wrote.

    Raises ReportError if the file cannot be read or a value is not what its column holds.
    """
    try:
        data = json.loads(_read(path))
        rows = data["rows"]
        cells = [
            {name: _json_cell(row[name], name) for name in COLUMNS if name in row} for row in rows
        ]
        return [_row({"kernel_config": "", **row}, path, n) for n, row in enumerate(cells)]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ReportError(f"{path}: not a report of ptx-report --json ({error!r:.100})") from error


def _json_cell(value: Any, column: str) -> str:
    if value is None:
        return ""
    if column in _TUPLES:
        return _TUPLES[column][0](value.items() if isinstance(value, dict) else value)
    return _as_text(str(value))


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            return stream.read()
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ReportError(f"{path}: not a CSV report (it is not text)") from error


def _row(row: dict[str, str], path: Path | str, line: int) -> Row:
    values: dict[str, object] = {}
    for column in COLUMNS:
        cell = _from_text(row.get(column) or "")
        if column in ("kernel_config", "spilled") or not cell:
            continue
        try:
            values[column] = _READERS.get(column, str)(cell)
        except ValueError as error:
            raise ReportError(
                f"{path}:{line}: {column} is {cell!r}, which is not a number"
            ) from error
    config = _from_text(row["kernel_config"] or "")
    if not config:
        raise ReportError(f"{path}:{line}: kernel_config is empty")
    symbol = str(values.get("symbol", config))
    if KEY.fullmatch(config):
        named = key_of_symbol(symbol)
        values["symbol"] = symbol if named in (config, None) else config
        values["object_key"] = None if named else config
    else:
        values["symbol"] = symbol
        values["name"] = config if config != symbol else None
    return Row(**values)  # type: ignore[arg-type]  # converted above, column by column
