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
_OF_ONE = ("added", "removed")  # verdicts on a kernel of one report
_VERDICTS = ("worse", *_OF_ONE)
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
    """Returns the conditions of `--fail-on`, at least one. Raises ReportError."""
    found = []
    words = [part.strip() for part in text.split(",")]
    for word in [*filter(None, words)] or words[:1]:
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

    Raises ReportError for a condition that nothing can be held to.
    """
    for condition in conditions:
        held = _held(changes, condition)
        lacking = sum(_lacks(change, condition) for change in held)
        option = f"--fail-on {condition.text}"
        if not held:
            either = "either report" if condition.name in _OF_ONE else "both reports"
            raise ReportError(f"{option}: nothing to hold to it: no kernel is in {either}")
        if lacking == len(held):
            raise ReportError(
                f"{option}: no kernel of both reports has this figure: give logs of both, or what "
                "a build wrote beside them"
            )
        is_sum = condition.name in _TOTALS
        if is_sum and not list(_totals(changes, condition)):
            raise ReportError(f"{option}: no architecture of both reports has the whole sum")
        if lacking:
            what = _TOTALS[condition.name][1] if is_sum else ALL_LABELS[_FIGURES[condition.name]]
            yield f"{option}: {what} of {lacking} of {len(held)} kernels are unknown"


def _held(changes: Sequence[Change], condition: Condition) -> Sequence[Change]:
    """Returns the kernels that can be held to a condition: those of both reports, for most."""
    if condition.name in _OF_ONE:
        return changes
    if condition.name in _TOTALS:
        return [change for change in changes if _is_summed(change.row)]
    may_be_new = _FIGURES.get(condition.name) in _FROM_NOTHING
    return [c for c in changes if c.new is not None and (c.old is not None or may_be_new)]


def _lacks(change: Change, condition: Condition) -> bool:
    """Returns whether a kernel's figure is unknown in a report that has the kernel."""
    if condition.name in _VERDICTS:
        return False
    if condition.name == "occupancy":
        return None in change.occupancy
    rows = [row for row in (change.old, change.new) if row is not None]
    if condition.name == "c75":
        return any(row.kind == "object" and not row.c75 for row in rows)  # notes are in logs
    name = _FIGURES.get(condition.name) or _TOTALS[condition.name][0]
    return any(getattr(row, name) is None for row in rows)


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
    _, what = _TOTALS[condition.name]
    for arch, before, after in _totals(changes, condition):
        if condition.exceeded(before, after):
            reason = f"{arch}: {after:,.0f} {what} (was {before:,.0f}, {after / before - 1:+.1%})"
            yield Failure(condition, None, reason)


def _totals(
    changes: Sequence[Change], condition: Condition
) -> Iterator[tuple[str | None, float, float]]:
    """Yields each architecture of which both reports have the sum, with both sums."""
    name, _ = _TOTALS[condition.name]
    for arch in dict.fromkeys(change.row.arch for change in changes):
        here = [change for change in changes if change.row.arch == arch]
        before, after = _total([c.old for c in here], name), _total([c.new for c in here], name)
        if before and after:
            yield arch, before, after


def _total(rows: Sequence[Row | None], name: str) -> float | None:
    """Returns the sum of a figure over all kernels; None if one kernel lacks it."""
    values = [getattr(row, name) for row in rows if row and _is_summed(row)]
    return None if None in values else sum(values)


def _is_summed(row: Row) -> bool:
    return row.kind in ("kernel", "object")
