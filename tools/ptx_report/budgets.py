"""Budgets of any project, by any condition: the YAML file that `--budgets` names.

- {where: "arch == 'sm_90'", registers: 168, spill_bytes: 0}   # of each kernel
- {where: "family == 'flash_decode'", total_bytes: 12M}        # of all their machine code
- {total_bytes: 40M}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import yaml

from codegen import options
from codegen.core.ptxas_rows import ReportError, Row
from codegen.core.words import counted

from .gate import LIMITS, Accepted, Offence, Verdict, not_checked, over_budget, unknown_of
from .report import Report

_TOTAL = "total_bytes"


@dataclass(frozen=True)
class Budget:
    """Limits of the rows for which an expression holds; of all rows without one."""

    place: str  # the file, and the number of the entry
    where: str | None
    limits: dict[str, int]  # each row's
    total_bytes: int | None  # machine code of all rows together


def read(path: Path) -> list[Budget]:
    """Returns the budgets of a file. Raises ReportError."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror or error}") from error
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise ReportError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, list) or not data:
        raise ReportError(f"{path}: expected a list of budgets, such as `- {{spill_bytes: 0}}`")
    return [_budget(entry, f"{path}: budget {number}") for number, entry in enumerate(data, 1)]


def _budget(entry: Any, place: str) -> Budget:
    names = ("where", *LIMITS, _TOTAL)
    if not isinstance(entry, dict) or not {*entry} <= {*names} or not {*entry} - {"where"}:
        raise ReportError(f"{place}: got {entry!r:.80}, expected a mapping of {', '.join(names)}")
    where = entry.get("where")
    if not isinstance(where, str | None):
        raise ReportError(f"{place}: where: got {where!r:.80}, expected an expression as a text")
    limits = {
        name: _limit(value, f"{place}: {name}") for name, value in entry.items() if name != "where"
    }
    total = limits.pop(_TOTAL, None)
    return Budget(place, where, limits, total)


def _limit(value: Any, place: str) -> int:
    try:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise click.BadParameter(f"got {value!r}, expected a number, or such as 500k or 2M")
        number = options.Size().convert(value, None, None)
    except click.BadParameter as error:
        raise ReportError(f"{place}: {error.message}") from None
    return number


def check(report: Report, budgets: Sequence[Budget], accepted: Accepted, verdict: Verdict) -> None:
    """Holds the report's rows to budgets. Raises ReportError for a bad expression."""
    for budget in budgets:
        rows = report.where(budget.where).rows if budget.where else report.rows
        lacking: dict[str, list[Row]] = {}
        for row in rows:
            verdict.checked.add(row)
            for reason in over_budget(row, budget.limits, budget.place, accepted):
                verdict.offences.append(Offence(row, reason))
            for name in unknown_of(row, budget.limits):
                lacking.setdefault(name, []).append(row)
        if budget.total_bytes is not None:
            _check_total(rows, budget.total_bytes, budget, verdict)
        for name, unknown in lacking.items():
            verdict.remarks.append(f"{budget.place}: {not_checked(name, unknown)}")
        if not rows:
            verdict.remarks.append(f"{budget.place}: no kernel matches")


def _check_total(rows: Sequence[Row], most: int, budget: Budget, verdict: Verdict) -> None:
    kernels = [row for row in rows if row.kind in ("kernel", "object")]
    unknown = [row for row in kernels if row.code_bytes is None]
    if unknown:
        verdict.remarks.append(f"{budget.place}: {not_checked(_TOTAL, unknown)}")
        return
    total = sum(row.code_bytes or 0 for row in kernels)
    if total > most:
        largest = max(kernels, key=lambda row: row.code_bytes or 0)
        reason = (
            f"{total:,} bytes of machine code in {counted(len(kernels), 'kernel')}, of which this "
            f"has the most, {largest.code_bytes:,}; {budget.place} is {most:,}"
        )
        verdict.offences.append(Offence(largest, reason))
