"""A report, or two builds, as one self-contained HTML page."""

from __future__ import annotations

import json
from array import array
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mako.template import Template

from codegen.core.ptxas_rows import Row

from . import by
from .diff import VERDICTS, Change, counts, notes
from .report import COLUMN_KINDS, HEADINGS, Report
from .table import summary, worst_first

_TEMPLATE = Path(__file__).with_name("page.html.mako")


def html_text(report: Report, changes: Sequence[Change] | None = None, base: str = "") -> str:
    """Returns the page: a table that sorts and filters, by kernel, architecture, template and in
    totals, and a heat map over any two parameters.

    It loads nothing: styles, script and data stand in it. A value stands there once, however many
    rows have it: a large library's names would fill gigabytes.

    Args:
        report: the build that is shown.
        changes: of two builds, what changed; the report is of the second.
        base: the first one's name.
    """
    if changes is None:
        rows = sorted(report.rows, key=worst_first)
        told: Iterable[Change | None] = [None] * len(rows)
    else:
        rows, told = [change.row for change in changes], changes
    values = (_values(report, row, change) for row, change in zip(rows, told, strict=True))
    configs = {
        row.key: {"parameters": dict(report.parameters(row)), "derived": dict(report.derived(row))}
        for row in rows
        if row.key
    }
    names = {name for config in configs.values() for known in config.values() for name in known}
    toolchains = sorted({row.toolchain for row in rows if row.toolchain})
    data = {
        "count": len(rows),
        "columns": _columns(values, len(rows)),
        "configs": configs,
        "parameters": report.parameter_names(),
        "headings": HEADINGS,
        "names": sorted(names | {*COLUMN_KINDS}),
        "views": _views(report, {id(row): place for place, row in enumerate(rows)}),
        "verdicts": VERDICTS if changes else [],
    }
    # Inside <script>, only `</` and `<!--` could end or confuse it; JSON may escape any character.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    template = Template(filename=str(_TEMPLATE), default_filters=["h"], strict_undefined=True)
    return str(
        template.render(
            data=text,
            summary=summary(report),
            inputs=report.inputs,
            toolchains=toolchains,
            base=base,
            changes="; ".join([counts(changes), *notes(changes)]) if changes is not None else "",
        )
    )


def _values(report: Report, row: Row, change: Change | None) -> dict[str, Any]:
    known, most = report.occupancy(row), report.highest_occupancy(row)
    limited = known or most
    return {
        **report.columns(row),
        "key": row.key,
        "line": row.line,
        "notes": row.remarks,
        "warnings": row.warnings,
        "highest_occupancy": most and most.fraction,
        "limiters": limited and " and ".join(limited.limiters),
        "verdict": change and change.verdict,
        "why": change and change.why,
        "was": tuple((name, *both) for name, both in change.details.items()) if change else (),
    }


def _views(report: Report, places: Mapping[int, int]) -> dict[str, Any]:
    """Returns the lines of the views by architecture and by template: their texts, and the places
    of the rows that they are of. Totals are sums of what a reader selects."""
    views = {}
    for view in ("architecture", "template"):
        lines = [line for line in by.lines(report, view) if all(id(r) in places for r in line.rows)]
        views[view] = {
            "columns": _columns((_joined(line.texts) for line in lines), len(lines)),
            "rows": [[places[id(row)] for row in line.rows] for line in lines],
        }
    return views


def _joined(texts: Mapping[str, str]) -> dict[str, str]:
    """Returns a line's texts, with all arguments in one."""
    own = {name: text for name, text in texts.items() if not name.startswith(by.ARGUMENT)}
    differing = [f"{n.removeprefix(by.ARGUMENT)}: {t}" for n, t in texts.items() if n not in own]
    return {**own, "with": ", ".join(differing)}


def _columns(lines: Iterable[Mapping[str, Any]], count: int) -> dict[str, Any]:
    """Returns each column's different values, and which of them each line has; the first is none
    at all."""
    values: dict[str, dict[Hashable, int]] = {}
    at: dict[str, array[int]] = {}
    for place, line in enumerate(lines):
        for name, value in line.items():
            if value in (None, (), ""):
                continue
            if name not in values:
                values[name], at[name] = {None: 0}, array("I", bytes(4 * count))
            of_column = values[name]
            at[name][place] = of_column.setdefault(value, len(of_column))
    return {name: {"values": [*values[name]], "at": at[name].tolist()} for name in values}
