"""A report as JSON and Markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from codegen.core.ptxas_rows import COLUMNS, Row

from .by import Line
from .diff import ALL_LABELS, Change, counts, notes
from .report import Report
from .table import spills, summary, worst_first

_MARKUP = re.compile(r"([\\`*\[\]<>|~@&#])")
_IN_SIGHT = 20  # changes
_COMMENT = 60_000  # characters; GitHub takes 65,536 in a comment


def row_data(report: Report, row: Row) -> dict[str, Any]:
    """Returns everything about a row, by column; absent values are null."""
    data: dict[str, Any] = {column: getattr(row, column) for column in COLUMNS}
    data["other"] = dict(row.other)
    data["parameters"] = dict(report.parameters(row))
    data["derived"] = dict(report.derived(row))
    known = report.occupancy(row)
    data["occupancy"] = asdict(known) if known else None
    return data


def json_text(
    report: Report, changes: Sequence[Change] | None, view: str | None, of_view: Sequence[Line]
) -> str:
    """Returns the report as one JSON object: inputs, statistics, rows, a `--diff`'s changes, and
    the lines of `--by`."""
    data: dict[str, Any] = {
        "inputs": report.inputs,
        "statistics": asdict(report.statistics),
        "rows": [row_data(report, row) for row in report.rows],
    }
    if changes is not None:
        data["changes"] = [change_data(change) for change in changes]
    if view is not None:
        lines = [{**line.texts, **line.figures} for line in of_view]
        data["by"] = {"view": view, "lines": lines}
    return json.dumps(data, indent=1) + "\n"


def change_data(change: Change) -> dict[str, Any]:
    """Returns a change as JSON: who, the verdict, why, and the figures that differ, (old, new)."""
    return {
        "kernel_config": change.row.kernel_config,
        "function": change.function,
        "arch": change.row.arch,
        "verdict": change.verdict,
        "cause": change.cause,
        "why": change.why,
        "deltas": change.details,
    }


def markdown_text(report: Report, changes: Sequence[Change] | None) -> str:
    """Returns a table for a pull request's comment: the changes of a `--diff`, else all rows. The
    worst come first, and the table is cut if a comment would be too long."""
    if changes is not None:
        return markdown_changes(changes)
    lines = [
        _row(
            row.kernel_config,
            row.arch,
            row.used_registers,
            spills(row, row.spill_stores),
            spills(row, row.spill_loads),
            row.stack_frame,
            row.smem,
            report.occupancy(row),
            ", ".join(row.remarks),
        )
        for row in sorted(report.rows, key=worst_first)
    ]
    header = (
        "| kernel | arch | registers | spill stores | spill loads | stack | smem | occupancy | |\n"
        "|---|---|--:|--:|--:|--:|--:|---|---|\n"
    )
    return f"**{summary(report)}**\n\n{_fit(header, lines)}"


def markdown_changes(changes: Sequence[Change]) -> str:
    """Returns the changes, worst first: a screenful of them in sight, the others folded."""
    listed = [change for change in changes if change.verdict != "same"]
    title = f"**ptx-report: {counts(changes)}**\n"
    remarks = "".join(f"\n{_escaped(note)}\n" for note in notes(changes))
    if not listed:
        return title + remarks
    used = [name for name in ALL_LABELS if any(name in change.details for change in listed)]
    header = "| kernel | arch | | " + "".join(f"{ALL_LABELS[name]} | " for name in used) + "why |\n"
    header += "|---|---|---|" + "--:|" * len(used) + "---|\n"
    lines = [
        _row(
            change.row.kernel_config,
            change.row.arch,
            " ".join(filter(None, (change.verdict, change.function))),
            *(_delta(change.details.get(name)) for name in used),
            change.why,
        )
        for change in listed
    ]
    text = f"{title}{remarks}\n{header}{''.join(lines[:_IN_SIGHT])}"
    if folded := lines[_IN_SIGHT:]:
        text += f"\n<details><summary>{len(folded)} more</summary>\n\n"
        text += f"{_fit(header, folded, _COMMENT - len(text))}\n</details>\n"
    return text


def _delta(values: tuple[int, int] | None) -> str:
    if values is None:
        return ""
    before, after = values
    return f"{before} → {after} ({after - before:+d})"


def _row(name: str, *cells: object) -> str:
    """Returns a line of a table. A cell's text is shown as it is, whatever it holds."""
    texts = ("" if cell is None else _escaped(str(cell)) for cell in cells)
    return "| " + " | ".join([_code(name), *texts]) + " |\n"


def _escaped(text: str) -> str:
    return _MARKUP.sub(r"\\\1", _line(text))


def _code(text: str) -> str:
    """Returns a code span: its fence is longer than any run of backticks in it."""
    text = _line(text).replace("|", "\\|")
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if "`" in (text[:1], text[-1:]) else ""
    return f"{fence}{space}{text}{space}{fence}"


def _line(text: str) -> str:
    return " ".join(text.split())


def _fit(header: str, lines: Sequence[str], most: int = _COMMENT) -> str:
    text = header
    for index, line in enumerate(lines):
        if len(text) + len(line) > most:
            return f"{text}\n… and {len(lines) - index} more.\n"
        text += line
    return text
