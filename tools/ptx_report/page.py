"""The report as one self-contained HTML page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mako.template import Template

from codegen.core.ptxas_rows import Row

from .report import COLUMN_KINDS, Report
from .table import summary, worst_first

_TEMPLATE = Path(__file__).with_name("page.html.mako")


def html_text(report: Report) -> str:
    """Returns the page: a table that sorts and filters, and a heat map over any two parameters.

    It loads nothing: styles, script and data stand in it.
    """
    rows = sorted(report.rows, key=worst_first)
    data = {
        "rows": [_row(report, row) for row in rows],
        "parameters": report.parameter_names(),
        "toolchains": sorted({row.toolchain for row in rows if row.toolchain}),
        "names": sorted({name for row in rows for name in report.values(row)} | {*COLUMN_KINDS}),
    }
    # Inside <script>, only `</` and `<!--` could end or confuse it; JSON may escape any character.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    template = Template(filename=str(_TEMPLATE), default_filters=["h"], strict_undefined=True)
    return str(
        template.render(
            data=text,
            summary=summary(report),
            inputs=report.inputs,
            toolchains=data["toolchains"],
        )
    )


def _row(report: Report, row: Row) -> dict[str, Any]:
    known = report.occupancy(row)
    values: dict[str, Any] = {
        "kernel": row.kernel_config,
        "function": report.function(row),
        "arch": row.arch,
        "kind": row.kind,
        "registers": row.used_registers,
        "spill_stores": row.spill_stores,
        "spill_loads": row.spill_loads,
        "stack": row.stack_frame,
        "smem": row.smem,
        "barriers": row.barriers,
        "occupancy": known and round(100 * known.fraction),
        "limiters": known and " and ".join(known.limiters),
        "ms": row.compile_time_ms,
        "notes": [*row.remarks],
        "warnings": list(row.warnings),
        "source": row.source and f"{row.source}:{row.line}",
        "symbol": row.symbol,
        "p": dict(report.parameters(row)),
        "v": report.values(row),
    }
    return {name: value for name, value in values.items() if value not in (None, [], {})}
