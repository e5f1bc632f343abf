"""The report on a terminal."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence

from rich.console import Console, JustifyMethod
from rich.text import Text

from codegen.core.ptxas_rows import Row
from codegen.core.words import counted

from ..listing import Line, most_rows, print_rest, print_rows
from .diff import ALL_LABELS, Change, counts, notes
from .report import Report

_REST = "--all shows them, --where selects, --csv writes a file"


def worst_first(row: Row) -> tuple[object, ...]:
    """Returns a key to sort by: spills, or the stack if they are unknown, registers, the name."""
    spills = (row.spill_stores or 0) + (row.spill_loads or 0)
    stack = (row.stack_frame or 0) if row.lacks_spills else 0
    registers = row.used_registers or 0
    return (-spills, -stack, -registers, row.kernel_config, row.kernel, row.arch or "")


def _figure(value: float | None, style: str = "") -> Text:
    return Text("" if value is None else f"{value:,.0f}", style=style)


def _registers(row: Row) -> Text:
    registers = row.used_registers
    return _figure(registers, "yellow" if registers is not None and registers >= 250 else "")


def _remarks(row: Row) -> Text:
    parts = [Text(remark, style="red") for remark in row.remarks]
    others = len(row.warnings) - sum("(C75" in warning for warning in row.warnings)
    if others:
        parts.append(Text(counted(others, "warning"), style="yellow"))
    return Text(", ").join(parts)


_COLUMNS: tuple[tuple[str, JustifyMethod, Callable[[Report, Row], Text | str]], ...] = (
    ("arch", "left", lambda report, row: row.arch or ""),
    ("kind", "left", lambda report, row: "" if row.kind == "kernel" else row.kind),
    ("regs", "right", lambda report, row: _registers(row)),
    ("spills", "right", lambda report, row: spill_cell(row)),
    ("stack", "right", lambda report, row: _figure(row.stack_frame)),
    ("smem", "right", lambda report, row: _figure(row.smem)),
    ("bar", "right", lambda report, row: _figure(row.barriers)),
    ("code", "right", lambda report, row: _figure(row.code_bytes)),
    ("PTX", "right", lambda report, row: _figure(row.ptx_bytes)),
    ("ms", "right", lambda report, row: _figure(row.compile_time_ms)),
    (
        "occupancy",
        "left",
        lambda report, row: known.short if (known := report.occupancy(row)) else "",
    ),
    ("function", "left", lambda report, row: report.function(row) or ""),
    ("remarks", "left", lambda report, row: _remarks(row)),
)


def print_table(report: Report, console: Console, parameters: bool, everything: bool) -> None:
    """Prints the rows, worst first."""
    names = report.parameter_names() if parameters else []
    shown = heapq.nsmallest(most_rows(console, everything), report.rows, key=worst_first)
    rows: list[Line] = []
    for row in shown:
        values = [str(report.parameters(row).get(name, "")) for name in names]
        rows.append((row.kernel_config, [*values, *(cell(report, row) for *_, cell in _COLUMNS)]))
    if rows:
        columns: list[tuple[str, JustifyMethod]] = [(name, "right") for name in names]
        columns += [(heading, justify) for heading, justify, _ in _COLUMNS]
        print_rows(console, "kernel", columns, rows)
    print_rest(console, len(report.rows) - len(rows), _REST)
    console.print(summary(report), highlight=False, soft_wrap=True)


def spills(row: Row, value: int | None) -> int | str | None:
    """Returns spilled bytes; `?` if they are unknown and the stack may hold some."""
    if row.lacks_spills and (row.kind == "object" or row.stack_frame is not None):
        return "?"
    return value


def spill_cell(row: Row) -> Text:
    """Returns a cell of spilled bytes."""
    known = spills(row, row.spill_bytes)
    return Text(known) if isinstance(known, str) else _figure(known, "red" if known else "dim")


def summary(report: Report) -> str:
    """Says how many rows there are, spill, are incomplete and wrong."""
    rows = report.rows
    kinds = Counter(row.kind for row in rows)
    functions, ptx = kinds.pop("function", 0), kinds.pop("ptx", 0)
    parts = [counted(sum(kinds.values()), "kernel")]
    if functions:
        parts.append(counted(functions, "device function"))
    if ptx:
        parts.append(f"{counted(ptx, 'kernel')} in PTX")
    spilled = sum(bool(row.spilled) for row in rows)
    unknown = [row for row in rows if row.lacks_spills]
    if spilled or not unknown:
        parts.append(f"{spilled} with spills")
    if unknown:
        stacks = sum(bool(row.stack_frame) for row in unknown)
        on_stack = (
            f" ({stacks} with a stack)" if any(row.kind == "object" for row in unknown) else ""
        )
        parts.append(f"{len(unknown)} whose spills are unknown{on_stack}")
    if incomplete := sum(row.incomplete is not None for row in rows):
        parts.append(f"{incomplete} incomplete")
    if serialised := sum(bool(row.c75) for row in rows):
        parts.append(f"{serialised} with C75xx notes")
    if any(row.unwritten is not None for row in rows):
        parts.append(f"{sum(bool(row.unwritten) for row in rows)} with unwritten registers")
    if overtaken := sum(bool(row.in_flight) for row in rows):
        parts.append(f"{overtaken} with registers used in flight")
    if report.statistics.unknown:
        parts.append(f"{counted(report.statistics.unknown, 'line')} not understood (--verbose)")
    return ", ".join(parts)


_STYLES = {
    "worse": "red",
    "mixed": "magenta",
    "better": "green",
    "removed": "yellow",
    "added": "cyan",
}


def print_changes(changes: Sequence[Change], console: Console, everything: bool) -> None:
    """Prints one line for every kernel that changed, worst first."""
    listed = [change for change in changes if change.verdict != "same"]
    if listed:
        names = [name for name in ALL_LABELS if any(name in change.details for change in listed)]
        columns: list[tuple[str, JustifyMethod]] = [
            ("arch", "left"),
            ("", "left"),
            *((ALL_LABELS[name], "right") for name in names),
            ("function", "left"),
            ("why", "left"),
        ]
        rows: list[Line] = [
            (
                change.row.kernel_config,
                [
                    change.row.arch or "",
                    Text(change.verdict, style=_STYLES[change.verdict]),
                    *(_delta(change.details.get(name), name) for name in names),
                    change.function or "",
                    change.why,
                ],
            )
            for change in listed[: most_rows(console, everything)]
        ]
        print_rows(console, "kernel", columns, rows)
        print_rest(console, len(listed) - len(rows), _REST)
    text = "; ".join([counts(changes), *notes(changes)])
    console.print(text, highlight=False, soft_wrap=True)


def _delta(values: tuple[int, int] | None, name: str) -> Text:
    if values is None:
        return Text("")
    before, after = values
    is_worse = (after > before) != (name == "occupancy")
    return Text(
        f"{before:,} → {after:,} ({after - before:+,})", style="red" if is_worse else "green"
    )
