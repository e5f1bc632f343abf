"""A report as JSON and Markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from codegen.core.ptxas_rows import COLUMNS, Row

from .diff import FIGURES, LABELS, Change, counts
from .report import Report
from .table import spills, summary, worst_first

_MARKUP = re.compile(r"([\\`*\[\]<>|~@&#])")
_COMMENT = 60_000  # characters; GitHub takes 65,536 in a comment


def row_data(report: Report, row: Row) -> dict[str, Any]:
    """Everything about a row, by column; absent values are null."""
    data: dict[str, Any] = {column: getattr(row, column) for column in COLUMNS}
    data["other"] = dict(row.other)
    data["parameters"] = dict(report.parameters(row))
    data["derived"] = dict(report.derived(row))
    known = report.occupancy(row)
    data["occupancy"] = asdict(known) if known else None
    return data


def json_text(report: Report, changes: Sequence[Change] | None) -> str:
    """The report as one JSON object: inputs, statistics, rows, and the changes of a `--diff`."""
    data: dict[str, Any] = {
        "inputs": report.inputs,
        "statistics": asdict(report.statistics),
        "rows": [row_data(report, row) for row in report.rows],
    }
    if changes is not None:
        data["changes"] = [
            {
                "kernel_config": change.row.kernel_config,
                "arch": change.row.arch,
                "verdict": change.verdict,
                "cause": change.cause,
                "deltas": change.deltas,
            }
            for change in changes
        ]
    return json.dumps(data, indent=1) + "\n"


def markdown_text(report: Report, changes: Sequence[Change] | None) -> str:
    """A table for a pull request's comment: the changes of a `--diff`, else all rows. Worst first,
    and cut if a comment would be too long."""
    if changes is not None:
        return _markdown_changes(changes)
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


def _markdown_changes(changes: Sequence[Change]) -> str:
    listed = [change for change in changes if change.verdict != "same"]
    title = f"**ptx-report: {counts(changes)}**\n"
    if not listed:
        return title
    used = [name for name in FIGURES if any(name in change.deltas for change in listed)]
    header = "| kernel | arch | | " + "".join(f"{LABELS[name]} | " for name in used) + "why |\n"
    header += "|---|---|---|" + "--:|" * len(used) + "---|\n"
    lines = [
        _row(
            change.row.kernel_config,
            change.row.arch,
            change.verdict,
            *(_delta(change, name) for name in used),
            change.cause,
        )
        for change in listed
    ]
    return f"{title}\n{_fit(header, lines)}"


def _delta(change: Change, name: str) -> str:
    if name not in change.deltas:
        return ""
    before, after = change.deltas[name]
    return f"{before} → {after} ({after - before:+d})"


def _row(name: str, *cells: object) -> str:
    """A line of a table. A cell's text is shown as it is, whatever it holds."""
    texts = ("" if cell is None else _MARKUP.sub(r"\\\1", _line(str(cell))) for cell in cells)
    return "| " + " | ".join([_code(name), *texts]) + " |\n"


def _code(text: str) -> str:
    """A code span: its fence is longer than any run of backticks in it."""
    text = _line(text).replace("|", "\\|")
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if "`" in (text[:1], text[-1:]) else ""
    return f"{fence}{space}{text}{space}{fence}"


def _line(text: str) -> str:
    return " ".join(text.split())


def _fit(header: str, lines: Sequence[str]) -> str:
    text = header
    for index, line in enumerate(lines):
        if len(text) + len(line) > _COMMENT:
            return f"{text}\n… and {len(lines) - index} more.\n"
        text += line
    return text
