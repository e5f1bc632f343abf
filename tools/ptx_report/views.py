"""A report laid out by architecture, by template, and in totals."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from rich.console import Console, JustifyMethod
from rich.text import Text

from codegen.core.architectures import of_code
from codegen.core.ptxas_rows import Row
from codegen.core.words import counted

from ..listing import Line, most_rows, print_rest, print_rows
from . import templates
from .architectures import Kernel, memory, side_by_side
from .report import Report
from .table import spill_cell, worst_first

_REST = "--all shows them, --where selects"
_PARTS = 10  # rows of each total


def print_architectures(report: Report, console: Console, everything: bool) -> None:
    """Prints a line for each kernel with its figures for each architecture, what is out of line
    first."""
    kernels = side_by_side((_name(report, row), row) for row in report.rows)
    archs = sorted({arch for kernel in kernels for arch in kernel.rows}, key=_order)
    shown = kernels[: most_rows(console, everything)]
    columns: list[tuple[str, JustifyMethod]] = [(arch, "right") for arch in archs]
    rows: list[Line] = [
        (kernel.name, [*(_cell(kernel, arch) for arch in archs), _remark(kernel)])
        for kernel in shown
    ]
    if rows:
        print_rows(console, "kernel", [*columns, ("out of line", "left")], rows)
    print_rest(console, len(kernels) - len(shown), _REST)
    count = sum(bool(kernel.out_of_line) for kernel in kernels)
    _print(console, f"{counted(len(kernels), 'kernel')} of several architectures, {count} with "
           "figures out of line; cells: registers, spilled bytes (of a binary its stack, with a "
           "question mark), bytes of code")  # fmt: skip


def print_templates(report: Report, console: Console, everything: bool) -> None:
    """Prints the kernels of each template with those of their arguments that differ, the template
    of most bytes first."""
    groups = _grouped(report.rows, _shape)
    left = most_rows(console, everything)
    for template, group in groups:
        shown = heapq.nsmallest(left, group, key=worst_first)
        if not shown:
            break
        lists = [templates.of(row.kernel_config).arguments for row in group]
        names, arguments = templates.differing(lists)
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
    for title, key in (("file", _source), ("arch", _arch), ("template", _template)):
        groups = _grouped(report.rows, key)
        _print_parts(console, title, groups, most)
    copies = duplicates(report.rows)
    if copies:
        columns: list[tuple[str, JustifyMethod]] = [
            ("arch", "left"), ("copies", "right"), ("code of the others", "right"), ("in", "left")
        ]  # fmt: skip
        rows: list[Line] = [
            (
                group[0].kernel_config,
                [group[0].arch or "", str(len(group)), _bytes(_superfluous(group)), _files(group)],
            )
            for group in copies[:most]
        ]
        print_rows(console, "the same code", columns, rows)
        print_rest(console, len(copies) - len(rows), "--all shows them")
        more = sum(map(_superfluous, copies))
        _print(console, f"{counted(len(copies), 'function')} several times: {_bytes(more)} bytes")
    _print(console, _sizes(report.rows))


def duplicates(rows: Iterable[Row]) -> list[list[Row]]:
    """Returns functions that have the same name, architecture and instructions, those that take
    most bytes first."""
    groups: dict[tuple[str, str | None, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row.machine_code and row.code_bytes:
            groups[row.kernel_config, row.arch, row.machine_code].append(row)
    copies = [group for group in groups.values() if len(group) > 1]
    return sorted(copies, key=lambda group: (-_superfluous(group), group[0].kernel_config))


def _superfluous(group: Sequence[Row]) -> int:
    return sum(row.code_bytes or 0 for row in group[1:])


def _files(group: Sequence[Row]) -> str:
    files = list(dict.fromkeys(map(_source, group)))
    return ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")


def _print_parts(
    console: Console, title: str, groups: Sequence[tuple[str, Sequence[Row]]], most: int
) -> None:
    columns: list[tuple[str, JustifyMethod]] = [
        (name, "right") for name in ("rows", "code", "PTX", "in the file", "")
    ]
    whole = sum(_weight(row) for _, group in groups for row in group) or 1
    rows: list[Line] = [
        (name, [f"{len(group):,}", *_sums(group), f"{sum(map(_weight, group)) / whole:.1%}"])
        for name, group in groups[:most]
    ]
    print_rows(console, title, columns, rows)
    print_rest(console, len(groups) - len(rows), "--all shows them")
    console.print()


def _grouped(rows: Iterable[Row], key: Callable[[Row], str]) -> list[tuple[str, list[Row]]]:
    """Returns the rows of each key, those that take most bytes first."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return sorted(groups.items(), key=lambda item: (-sum(map(_weight, item[1])), item[0]))


def _weight(row: Row) -> int:
    """Returns the bytes that a row takes in its file; of a log, where that is unknown, 0."""
    return row.stored_bytes or 0


def _template(row: Row) -> str:
    return row.key.rpartition(".")[0] if row.key else templates.template(row.kernel_config)


def _shape(row: Row) -> str:
    """Returns a template with those of its arguments that are templates."""
    heads = [] if row.key else templates.heads(templates.of(row.kernel_config))
    return f"{_template(row)}<{', '.join(heads)}>" if heads else _template(row)


def _source(row: Row) -> str:
    return row.source or ""


def _arch(row: Row) -> str:
    return row.arch or ""


def _name(report: Report, row: Row) -> str:
    function = report.function(row)
    return f"{row.kernel_config} [{function}]" if function else row.kernel_config


def _order(arch: str) -> tuple[int, str]:
    named = of_code(arch)
    return (named.capability if named else 0), arch


def _cell(kernel: Kernel, arch: str) -> Text:
    row = kernel.rows.get(arch)
    if row is None:
        return Text("–", style="dim")
    unknown = "?" if row.spill_bytes is None else ""
    figures = [row.used_registers, memory(row), row.code_bytes]
    texts = [f"{value:,}{mark}" for value, mark in zip(figures, ("", unknown, ""), strict=True)
             if value is not None]  # fmt: skip
    is_out = any(arch in one.archs for one in kernel.out_of_line)
    return Text(" ".join(texts), style="red" if is_out else "")


def _remark(kernel: Kernel) -> str:
    return "; ".join(map(str, kernel.out_of_line))


def _figures(row: Row) -> list[Text | str]:
    figures = (row.stack_frame, row.smem, row.code_bytes, row.ptx_bytes)
    return [_bytes(row.used_registers), spill_cell(row), *map(_bytes, figures)]


def _bytes(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _sums(rows: Sequence[Row]) -> list[str]:
    figures = ("code_bytes", "ptx_bytes", "stored_bytes")
    sums = [sum(getattr(row, name) or 0 for row in rows) for name in figures]
    return [f"{value:,}" if value else "" for value in sums]


def _sizes(rows: Sequence[Row]) -> str:
    names = ("bytes of code", "bytes of PTX", "bytes in files")
    sums = [f"{value} {name}" for value, name in zip(_sums(rows), names, strict=True) if value]
    return ", ".join(sums) or "no sizes"


def _print(console: Console, text: str, style: str = "") -> None:
    console.print(text, style=style, highlight=False, soft_wrap=True, markup=False)
