"""The report on a terminal."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from rich.console import Console, JustifyMethod
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from .diff import FIGURES, LABELS, Change, counts
from .records import Record
from .report import Report

_MOST_ROWS = 1000  # of a table; nobody reads more, and laying them out takes minutes


def worst_first(row: Record) -> tuple[object, ...]:
    """Sort key: spills first, then registers, then the name."""
    spills = (row.spill_stores or 0) + (row.spill_loads or 0)
    registers = row.used_registers or 0
    return (-spills, -registers, row.kernel_config, row.kernel, row.arch or "")


def _figure(value: int | None, style: str = "") -> Text:
    return Text("" if value is None else f"{value:,}", style=style)


def _registers(row: Record) -> Text:
    registers = row.used_registers
    return _figure(registers, "yellow" if registers is not None and registers >= 250 else "")


def _remarks(row: Record) -> Text:
    parts = [Text(code, style="red") for code in row.c75]
    if row.incomplete:
        parts.append(Text(f"incomplete: {row.incomplete}", style="red"))
    others = len(row.warnings) - sum("(C75" in warning for warning in row.warnings)
    if others:
        parts.append(Text(f"{others} warning{'s' if others > 1 else ''}", style="yellow"))
    return Text(", ").join(parts)


def print_whole(table: Table, console: Console) -> None:
    """Prints a table: folded to the width of a terminal, at its full width into a file."""
    if console.is_terminal:
        console.print(table)
    else:
        wide = console.options.update(max_width=100_000)
        width = Measurement.get(console, wide, table).maximum
        Console(file=console.file, width=width).print(table)


def print_table(report: Report, console: Console, parameters: bool) -> None:
    """One line a row, worst first. Columns that no row fills are left out."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    names = report.parameter_names() if parameters else []
    rows = heapq.nsmallest(_MOST_ROWS, report.rows, key=worst_first)
    several = report.several()
    columns: list[tuple[str, JustifyMethod, list[Text]]] = [
        ("kernel", "left", [Text(row.kernel_config) for row in rows]),
        ("function", "left", [Text(row.kernel if several and row.key else "") for row in rows]),
        *(
            (name, "right", [Text(str(report.parameters(row).get(name, ""))) for row in rows])
            for name in names
        ),
        ("arch", "left", [Text(row.arch or "") for row in rows]),
        ("kind", "left", [Text("" if row.kind == "kernel" else row.kind) for row in rows]),
        ("regs", "right", [_registers(row) for row in rows]),
        ("spill st", "right", [_spill(row.spill_stores) for row in rows]),
        ("spill ld", "right", [_spill(row.spill_loads) for row in rows]),
        ("stack", "right", [_figure(row.stack_frame) for row in rows]),
        ("smem", "right", [_figure(row.smem) for row in rows]),
        ("bar", "right", [_figure(row.barriers) for row in rows]),
        ("ms", "right", [_milliseconds(row) for row in rows]),
        ("occupancy", "left", [Text(str(report.occupancy(row) or "")) for row in rows]),
        ("remarks", "left", [_remarks(row) for row in rows]),
    ]
    columns = [column for column in columns if any(cell.plain for cell in column[2])]
    for title, justify, _ in columns:
        fold = title in ("kernel", "remarks")
        table.add_column(title, justify=justify, no_wrap=not fold, overflow="fold")
    for cells in zip(*(column[2] for column in columns), strict=True):
        table.add_row(*cells)
    print_whole(table, console)
    if len(report.rows) > len(rows):
        more = f"… and {len(report.rows) - len(rows):,} more: --where selects, --csv holds all"
        console.print(more, highlight=False)
    console.print(summary(report), highlight=False)


def _spill(value: int | None) -> Text:
    return _figure(value, "red" if value else "dim")


def _milliseconds(row: Record) -> Text:
    return Text("" if row.compile_time_ms is None else f"{row.compile_time_ms:,.0f}")


def summary(report: Report) -> str:
    """How many rows there are, spill and are incomplete."""
    rows = report.rows
    kernels = sum(row.kind != "function" for row in rows)
    parts = [f"{kernels} kernels"]
    if len(rows) > kernels:
        parts.append(f"{len(rows) - kernels} device functions")
    parts.append(f"{sum(bool(row.spilled) for row in rows)} with spills")
    if incomplete := sum(row.incomplete is not None for row in rows):
        parts.append(f"{incomplete} incomplete")
    if serialised := sum(bool(row.c75) for row in rows):
        parts.append(f"{serialised} with C75xx notes")
    return ", ".join(parts)


_STYLES = {"worse": "red", "better": "green", "removed": "yellow", "added": "cyan"}


def print_changes(changes: Sequence[Change], console: Console) -> None:
    """One line for every kernel that changed, worst first."""
    listed = [change for change in changes if change.verdict != "same"]
    if listed:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("kernel", overflow="fold")
        table.add_column("arch", no_wrap=True)
        table.add_column("", no_wrap=True)
        names = [name for name in FIGURES if any(name in change.deltas for change in listed)]
        for name in names:
            table.add_column(LABELS[name], justify="right", no_wrap=True)
        table.add_column("why", overflow="fold")
        for change in listed[:_MOST_ROWS]:
            style = _STYLES[change.verdict]
            table.add_row(
                Text(change.row.kernel_config),
                Text(change.row.arch or ""),
                Text(change.verdict, style=style),
                *(_delta(change, name) for name in names),
                Text(change.cause),
            )
        print_whole(table, console)
    if len(listed) > _MOST_ROWS:
        console.print(f"… and {len(listed) - _MOST_ROWS:,} more", highlight=False)
    console.print(counts(changes), highlight=False)


def _delta(change: Change, name: str) -> Text:
    if name not in change.deltas:
        return Text("")
    before, after = change.deltas[name]
    return Text(
        f"{before:,} → {after:,} ({after - before:+,})", style="red" if after > before else "green"
    )
