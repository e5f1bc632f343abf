"""The rows of a report by architecture, by template, in totals and beside predictions: the lines of
each view."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from codegen.core.architectures import of_code
from codegen.core.ptxas_rows import Row, table_text

from . import predictions, templates
from .architectures import Kernel, side_by_side
from .report import Report
from .table import worst_first

_OF_ARCHITECTURE = ("used_registers", "spill_bytes", "stack_frame", "code_bytes")
_OF_ROW = ("used_registers", "spill_bytes", "stack_frame", "smem", "code_bytes", "ptx_bytes")
ARGUMENT = "argument "  # begins the columns of a template's arguments
SIZES = ("code_bytes", "ptx_bytes", "stored_bytes")  # added up in totals


class Line(NamedTuple):
    """A line of a view: its texts and its figures, by column, and the rows that they are of."""

    texts: Mapping[str, str]
    figures: Mapping[str, int | None]
    rows: Sequence[Row]


def lines(report: Report, view: str) -> list[Line]:
    """Returns the lines of a view, which is one of VIEWS."""
    return list(_LINES[view](report))


def csv_text(of_view: Iterable[Line]) -> str:
    """Returns lines as CSV: a column for whatever any of them has."""
    cells = [{**line.texts, **line.figures} for line in of_view]
    names = list(dict.fromkeys(name for line in cells for name in line))
    return table_text(names, ([line.get(name) for name in names] for line in cells))


def _architectures(report: Report) -> Iterator[Line]:
    """Yields a line for each kernel of several architectures, what is out of line first."""
    kernels = kernels_of(report)
    archs = architectures(kernels)
    for kernel in kernels:
        figures = {
            f"{arch}.{name}": getattr(kernel.rows.get(arch), name, None)
            for arch in archs
            for name in _OF_ARCHITECTURE
        }
        texts = {"kernel": kernel.name, "out_of_line": remark(kernel)}
        yield Line(texts, figures, [*kernel.rows.values()])


def _templates(report: Report) -> Iterator[Line]:
    """Yields a line for each row, with the arguments that differ within its template, by their
    place; the template of most bytes first, and its worst rows."""
    for template, rows in grouped(report.rows, shape):
        group = sorted(rows, key=worst_first)
        names, arguments = differing(report, group)
        for row, values in zip(group, arguments, strict=True):
            texts = {"template": template, "arch": row.arch or ""}
            texts |= {f"{ARGUMENT}{n}": v for n, v in zip(names, values, strict=True) if v}
            yield Line(texts, {name: getattr(row, name) for name in _OF_ROW}, [row])


def _totals(report: Report) -> Iterator[Line]:
    """Yields a line for each file, architecture and template, and for code that is there several
    times, whose figures are of all but one."""
    for of, key in PARTS.items():
        for name, group in grouped(report.rows, key):
            yield Line({"of": of, "name": name}, _sums(group), group)
    for group in duplicates(report.rows):
        files = " ".join(dict.fromkeys(map(source, group)))
        texts = {"of": "copies", "name": group[0].kernel_config, "arch": group[0].arch or ""}
        yield Line(texts | {"files": files}, _sums(group[1:]), group[1:])


def _predicted(report: Report) -> Iterator[Line]:
    """Yields a line for each row with predictions, the greatest error first."""
    for row, figures in predictions.predicted(report):
        columns = {
            f"{name}.{column}": getattr(figure, column)
            for name, figure in figures.items()
            for column in ("predicted", "printed", "error")
        }
        yield Line({"kernel": row_name(report, row), "arch": row.arch or ""}, columns, [row])


def _sums(rows: Sequence[Row]) -> dict[str, int | None]:
    sums = {name: sum(getattr(row, name) or 0 for row in rows) for name in SIZES}
    return {"rows": len(rows), **sums}


def kernels_of(report: Report) -> list[Kernel]:
    """Returns the kernels of several architectures, what is out of line first."""
    rows = ((row_name(report, row), row.arch or "", row) for row in report.rows)
    return [kernel for kernel in side_by_side(rows) if len(kernel.rows) > 1]


def architectures(kernels: Iterable[Kernel]) -> list[str]:
    """Returns the architectures of kernels, in order."""
    return sorted({arch for kernel in kernels for arch in kernel.rows}, key=_order)


def remark(kernel: Kernel) -> str:
    """Says what is out of line in a kernel."""
    return "; ".join(map(str, kernel.out_of_line))


def differing(report: Report, group: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Returns which arguments differ among the kernels of a template, and each one's; of our
    kernels the function and the parameters, or the key if its parameters are unknown."""
    if group[0].key is None:
        return templates.differing([templates.of(row.kernel_config).arguments for row in group])
    known = [
        {
            "function": report.function(row) or row.kernel,
            **(report.parameters(row) or {"key": row.key}),
        }
        for row in group
    ]
    names = [
        name
        for name in dict.fromkeys(name for values in known for name in values)
        if len({values.get(name) for values in known}) > 1
    ]
    return names, [[str(values.get(name, "")) for name in names] for values in known]


def duplicates(rows: Iterable[Row]) -> list[list[Row]]:
    """Returns functions that have the same name, architecture and instructions, those that take
    most bytes first."""
    groups: dict[tuple[str, str | None, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row.machine_code and row.code_bytes:
            groups[row.kernel_config, row.arch, row.machine_code].append(row)
    copies = [group for group in groups.values() if len(group) > 1]
    return sorted(copies, key=lambda group: (-superfluous(group), group[0].kernel_config))


def superfluous(group: Sequence[Row]) -> int:
    """Returns the bytes of all but one of the same functions."""
    return sum(row.code_bytes or 0 for row in group[1:])


def grouped(rows: Iterable[Row], key: Callable[[Row], str]) -> list[tuple[str, list[Row]]]:
    """Returns the rows of each key, those that take most bytes first."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return sorted(groups.items(), key=lambda item: (-sum(map(weight, item[1])), item[0]))


def weight(row: Row) -> int:
    """Returns the bytes that a row takes in its file; of a log, where that is unknown, 0."""
    return row.stored_bytes or 0


def template(row: Row) -> str:
    """Returns a kernel's template; of our kernels, the family and the target."""
    return row.key.rpartition(".")[0] if row.key else templates.template(row.kernel_config)


def shape(row: Row) -> str:
    """Returns a template with those of its arguments that are templates."""
    heads = [] if row.key else templates.heads(templates.of(row.kernel_config))
    return f"{template(row)}<{', '.join(heads)}>" if heads else template(row)


def source(row: Row) -> str:
    """Returns the file that a row stands in."""
    return row.source or ""


def _arch(row: Row) -> str:
    return row.arch or ""


def row_name(report: Report, row: Row) -> str:
    """Returns a kernel's name, with its function if its configuration has several."""
    function = report.function(row)
    return f"{row.kernel_config} [{function}]" if function else row.kernel_config


def _order(arch: str) -> tuple[int, str]:
    named = of_code(arch)
    return (named.capability if named else 0), arch


PARTS: dict[str, Callable[[Row], str]] = {"file": source, "arch": _arch, "template": template}
_LINES = {
    "architecture": _architectures,
    "template": _templates,
    "total": _totals,
    "predicted": _predicted,
}
VIEWS = tuple(_LINES)
