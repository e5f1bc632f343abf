"""Conditions on which `ptx-report diff` fails: `--fail-on spills,registers+8,size+5%,C75`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from codegen.core.ptxas_rows import ReportError, Row

from .diff import ALL_LABELS, Change, describe

# Names of figures; those that a kernel which was added may fail on, as it has none of them before.
_FIGURES = {
    "spills": "spill_bytes",
    "registers": "used_registers",
    "stack": "stack_frame",
    "smem": "smem",
    "barriers": "barriers",
    "occupancy": "occupancy",
    "bytes": "code_bytes",
    "c75": "c75",
    "unwritten": "unwritten",
    "in_flight": "in_flight",
}
_FROM_NOTHING = ("spill_bytes", "c75", "unwritten", "in_flight")
_TOTALS = {"size": ("code_bytes", "bytes of code"), "seconds": ("compile_time_ms", "ms of ptxas")}
_VERDICTS = ("worse", "added", "removed")
_CONDITION = re.compile(r"([a-z]\w*)(?:([+-])(\d+(?:\.\d+)?)(%?))?", re.IGNORECASE)


@dataclass(frozen=True)
class Condition:
    """One of them: a figure that grows by more than so much, or a verdict."""

    text: str
    name: str
    most: float = 0.0  # growth that passes
    is_percent: bool = False

    def exceeded(self, before: float, after: float) -> bool:
        """Returns whether the growth, or the loss of occupancy, is too much."""
        growth = before - after if self.name == "occupancy" else after - before
        return growth > (before * self.most / 100 if self.is_percent else self.most)


@dataclass(frozen=True)
class Failure:
    """A kernel, or all kernels of an architecture, that exceed a condition."""

    condition: Condition
    change: Change | None
    reason: str

    def __str__(self) -> str:
        return f"{_named(self.change)}{self.reason} (--fail-on {self.condition.text})"


def _named(change: Change | None) -> str:
    return f"{change.name} [{change.row.arch or 'architecture unknown'}]: " if change else ""


def parse(text: str) -> list[Condition]:
    """Returns the conditions of `--fail-on`. Raises ReportError."""
    found = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        match = _CONDITION.fullmatch(word)
        name = match[1].lower() if match else ""
        names = (*_FIGURES, *_TOTALS, *_VERDICTS)
        if match is None or name not in names or (match[2] and name in _VERDICTS):
            raise ReportError(
                f"--fail-on: got {word!r}, expected {', '.join(names)}; a figure may say how much "
                "more passes: registers+8, size+5%"
            )
        if match[2] and (match[2] == "-") != (name == "occupancy"):
            raise ReportError(
                f"--fail-on: got {word!r}: occupancy falls (occupancy-10), all others grow "
                "(spills+8)"
            )
        found.append(Condition(word, name, float(match[3] or 0), bool(match[4])))
    return found


def failures(changes: Sequence[Change], conditions: Sequence[Condition]) -> list[Failure]:
    """Returns what exceeds the conditions, in their order, the worst kernel first."""
    found: list[Failure] = []
    for condition in conditions:
        if condition.name in _TOTALS:
            found += _of_totals(changes, condition)
        else:
            for change in changes:
                if reason := _reason(change, condition):
                    found.append(Failure(condition, change, reason))
    return found


def unknown(changes: Sequence[Change], conditions: Sequence[Condition]) -> Iterator[str]:
    """Says which figures are unknown for how many kernels, which so pass a condition.

    Raises ReportError for a condition that no kernel can be held to.
    """
    both = [(c.old, c.new) for c in changes if c.old is not None and c.new is not None]
    for condition in conditions:
        if condition.name in _VERDICTS or condition.name == "occupancy":
            continue
        name = _FIGURES.get(condition.name) or _TOTALS[condition.name][0]
        lacking = sum(any(_is_unknown(row, name) for row in rows) for rows in both)
        if lacking == len(both) > 0:
            raise ReportError(
                f"--fail-on {condition.text}: no kernel of both reports has this figure: give logs "
                "of both, or what a build wrote beside them"
            )
        if lacking:
            what = ALL_LABELS.get(name, _TOTALS.get(condition.name, ("", ""))[1])
            of = f"{lacking} of {len(both)} kernels"
            yield f"--fail-on {condition.text}: {what} of {of} are unknown"


def _is_unknown(row: Row, name: str) -> bool:
    if name == "c75":
        return row.kind == "object" and not row.c75  # notes are in logs
    return getattr(row, name) is None


def _reason(change: Change, condition: Condition) -> str | None:
    if condition.name in _VERDICTS:
        is_so = change.is_worse if condition.name == "worse" else change.verdict == condition.name
        why = describe(change) or change.verdict
        return why if is_so else None
    name = _FIGURES[condition.name]
    before, after = change.values(name)
    if change.old is None and name in _FROM_NOTHING:
        before = 0
    if before is None or after is None or not condition.exceeded(before, after):
        return None
    return f"{after} {ALL_LABELS[name]} (was {before})"


def _of_totals(changes: Sequence[Change], condition: Condition) -> Iterator[Failure]:
    name, what = _TOTALS[condition.name]
    for arch in dict.fromkeys(change.row.arch for change in changes):
        here = [change for change in changes if change.row.arch == arch]
        before, after = _total([c.old for c in here], name), _total([c.new for c in here], name)
        if before is None or after is None:
            continue
        if before and condition.exceeded(before, after):
            reason = f"{arch}: {after:,.0f} {what} (was {before:,.0f}, {after / before - 1:+.1%})"
            yield Failure(condition, None, reason)


def _total(rows: Sequence[Row | None], name: str) -> float | None:
    """Returns the sum of a figure over all kernels; None if one kernel lacks it."""
    values = [getattr(row, name) for row in rows if row and row.kind in ("kernel", "object")]
    return None if None in values else sum(values)
