"""A report laid out by architecture, by template, in totals, and beside predictions."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.console import Console, JustifyMethod
from rich.text import Text

from codegen.core.ptxas_rows import ReportError, Row
from codegen.core.words import counted

from ..listing import Line, most_rows, print_rest, print_rows
from . import by, predictions
from .architectures import Kernel, memory
from .report import Report
from .table import spill_cell, worst_first

_REST = "--all shows them, --where selects"
_PARTS = 10  # rows of each total


def print_architectures(report: Report, console: Console, everything: bool) -> None:
    """Prints a line for each kernel with its figures for each architecture, what is out of line
    first."""
    kernels = by.kernels_of(report)
    archs = by.architectures(kernels)
    print_columns(kernels, archs, _figures_of_code, "out of line", console, everything)
    count = sum(bool(kernel.out_of_line) for kernel in kernels)
    _print(console, f"{counted(len(kernels), 'kernel')} of several architectures, {count} with "
           "figures out of line; cells: registers, spilled bytes (of a binary its stack, with a "
           "question mark), bytes of code")  # fmt: skip


def print_columns(
    kernels: Sequence[Kernel],
    names: Sequence[str],
    figures: Callable[[Row], Iterable[str]],
    heading: str,
    console: Console,
    everything: bool,
) -> None:
    """Prints a line for each kernel with its figures in columns of these names, and what is out of
    line under a heading."""
    shown = kernels[: most_rows(console, everything)]
    columns: list[tuple[str, JustifyMethod]] = [(name, "right") for name in names]
    rows: list[Line] = [
        (kernel.name, [*(_cell(kernel, name, figures) for name in names), by.remark(kernel)])
        for kernel in shown
    ]
    if rows:
        print_rows(console, "kernel", [*columns, (heading, "left")], rows)
    print_rest(console, len(kernels) - len(shown), _REST)


def print_templates(report: Report, console: Console, everything: bool) -> None:
    """Prints the kernels of each template with those of their arguments that differ, the template
    of most bytes first."""
    groups = by.grouped(report.rows, by.shape)
    left = most_rows(console, everything)
    for template, group in groups:
        shown = heapq.nsmallest(left, group, key=worst_first)
        if not shown:
            break
        names, arguments = by.differing(report, group)
        of_row = dict(zip(map(id, group), arguments, strict=True))
        columns: list[tuple[str, JustifyMethod]] = [(name, "right") for name in names]
        columns += [(name, "right") for name in ("regs", "spills", "stack", "smem", "code", "PTX")]
        _print(console, f"{template}: {counted(len(group), 'row')}, {_sizes(group)}", "bold")
        print_rows(
            console, "arch", columns,
            [(row.arch or "", [*of_row[id(row)], *_figures(row)]) for row in shown],
        )  # fmt: skip
        left -= len(shown)
    print_rest(console, len(report.rows) - most_rows(console, everything) + left, _REST)
    _print(console, f"{counted(len(groups), 'template')}, {_sizes(report.rows)}")


def print_totals(report: Report, console: Console, everything: bool) -> None:
    """Prints how many bytes each file, architecture and template takes, and which code is there
    several times."""
    most = most_rows(console, True) if everything else _PARTS
    for title, key in by.PARTS.items():
        _print_parts(console, title, by.grouped(report.rows, key), most)
    copies = by.duplicates(report.rows)
    if copies:
        columns: list[tuple[str, JustifyMethod]] = [
            ("arch", "left"), ("copies", "right"), ("code of the others", "right"), ("in", "left")
        ]  # fmt: skip
        rows: list[Line] = [
            (
                group[0].kernel_config,
                [
                    group[0].arch or "",
                    str(len(group)),
                    _bytes(by.superfluous(group)),
                    _files(group),
                ],
            )
            for group in copies[:most]
        ]
        print_rows(console, "the same code", columns, rows)
        print_rest(console, len(copies) - len(rows), "--all shows them")
        more = sum(map(by.superfluous, copies))
        _print(console, f"{counted(len(copies), 'function')} several times: {_bytes(more)} bytes")
    _print(console, _sizes(report.rows))


def print_predicted(report: Report, console: Console, everything: bool) -> None:
    """Prints what specs predict of kernels beside what ptxas printed, the greatest error first."""
    held = predictions.predicted(report)
    if not held:
        raise ReportError("no row's spec has `predict:`; --manifest names the kernels' manifest")
    names = list(dict.fromkeys(name for one in held for name in one.figures))
    columns: list[tuple[str, JustifyMethod]] = [("arch", "left")]
    for name in names:
        columns += [(name, "right"), ("predicted", "right"), ("error", "right")]
    shown = held[: most_rows(console, everything)]
    rows: list[Line] = [
        (by.row_name(report, one.row), [one.row.arch or "", *_of_prediction(one, names)])
        for one in shown
    ]
    print_rows(console, "kernel", columns, rows)
    print_rest(console, len(held) - len(shown), _REST)
    for line in predictions.summaries(held):
        _print(console, line)


def _of_prediction(one: predictions.Predicted, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        figure = one.figures.get(name)
        if figure is None:
            yield from ("", "", "")
        else:
            error = "?" if figure.error is None else f"{figure.error:+,}" if figure.error else "0"
            yield from (_bytes(figure.printed), f"{figure.predicted:,}", error)


def _files(group: Sequence[Row]) -> str:
    files = list(dict.fromkeys(map(by.source, group)))
    return ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")


def _print_parts(
    console: Console, title: str, groups: Sequence[tuple[str, Sequence[Row]]], most: int
) -> None:
    columns: list[tuple[str, JustifyMethod]] = [
        (name, "right") for name in ("rows", "code", "PTX", "in the file", "")
    ]
    whole = sum(by.weight(row) for _, group in groups for row in group) or 1
    rows: list[Line] = [
        (name, [f"{len(group):,}", *_sums(group), f"{sum(map(by.weight, group)) / whole:.1%}"])
        for name, group in groups[:most]
    ]
    print_rows(console, title, columns, rows)
    print_rest(console, len(groups) - len(rows), "--all shows them")
    console.print()


def _cell(kernel: Kernel, column: str, figures: Callable[[Row], Iterable[str]]) -> Text:
    row = kernel.rows.get(column)
    if row is None:
        return Text("–", style="dim")
    is_out = any(column in one.columns for one in kernel.out_of_line)
    return Text(" ".join(figures(row)) or "incomplete", style="red" if is_out else "")


def _figures_of_code(row: Row) -> Iterable[str]:
    unknown = "?" if row.spill_bytes is None else ""
    figures = [row.used_registers, memory(row), row.code_bytes]
    return [f"{value:,}{mark}" for value, mark in zip(figures, ("", unknown, ""), strict=True)
            if value is not None]  # fmt: skip


def _figures(row: Row) -> list[Text | str]:
    figures = (row.stack_frame, row.smem, row.code_bytes, row.ptx_bytes)
    return [_bytes(row.used_registers), spill_cell(row), *map(_bytes, figures)]


def _bytes(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _sums(rows: Sequence[Row]) -> list[str]:
    sums = [sum(getattr(row, name) or 0 for row in rows) for name in by.SIZES]
    return [f"{value:,}" if value else "" for value in sums]


def _sizes(rows: Sequence[Row]) -> str:
    names = ("bytes of code", "bytes of PTX", "bytes in files")
    sums = [f"{value} {name}" for value, name in zip(_sums(rows), names, strict=True) if value]
    return ", ".join(sums) or "no sizes"


def _print(console: Console, text: str, style: str = "") -> None:
    console.print(text, style=style, highlight=False, soft_wrap=True, markup=False)
