"""Predictions of specs beside what ptxas printed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from codegen.core.ptxas_rows import Row

from .report import Report, static


class Figure(NamedTuple):
    """A figure of a kernel, as a spec predicts it and as ptxas printed it; None: it did not."""

    predicted: int
    printed: int | None

    @property
    def error(self) -> int | None:
        """Returns by how much the prediction is too high."""
        return None if self.printed is None else self.predicted - self.printed


class Predicted(NamedTuple):
    """A row whose spec has predictions, and its figures by their names in specs."""

    row: Row
    figures: Mapping[str, Figure]


def predicted(report: Report) -> list[Predicted]:
    """Returns the rows with predictions, those of the greatest errors in registers first."""
    held = []
    for row in report.rows:
        if row.kind not in ("kernel", "object"):
            continue
        printed = {
            "registers": row.used_registers,
            "shared_bytes": None if row.used_registers is None else static(row),
        }
        figures = {
            name: Figure(int(value), printed[name])
            for name, value in report.predicted(row).items()
            if name in printed
        }
        if figures:
            held.append(Predicted(row, figures))
    return sorted(held, key=_worst_first)


def _worst_first(one: Predicted) -> tuple[list[int], str]:
    errors = (figure.error for _, figure in sorted(one.figures.items()))
    return [-abs(error or 0) for error in errors], one.row.kernel_config


def summaries(held: Iterable[Predicted]) -> list[str]:
    """Returns a line for each figure: how far the predictions are off."""
    errors: dict[str, list[int]] = {}
    for one in held:
        for name, figure in one.figures.items():
            if figure.error is not None:
                errors.setdefault(name, []).append(figure.error)
    return [
        f"{name}: {sum(map(abs, off)) / len(off):.1f} off on average, "
        f"{max(map(abs, off))} at most; exact in {off.count(0)} of {len(off)} rows, "
        f"too high in {sum(e > 0 for e in off)}, too low in {sum(e < 0 for e in off)}"
        for name, off in errors.items()
    ]
