"""What came out: rows, a table for each group of problems, JSON, and a plot."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from runtime import _native, packs

from .problems import Problem


@dataclass(frozen=True)
class Row:
    """One contender on one problem."""

    contender: str  # a key, "PyTorch <backend>", or FlashAttention-3
    problem: Problem
    seconds: float  # the median
    turns: int

    @property
    def rate(self) -> float:
        """Operations a second."""
        return self.problem.operations / self.seconds


def machine(device: torch.device) -> dict[str, Any]:
    """What the figures depend on besides the code."""
    facts: dict[str, Any] = {"torch": torch.__version__, "compiler": _native.compiler}
    facts["packs"] = {pack.name: dict(pack.settings) for pack in packs.all_packs()}
    if device.type == "cuda":
        facts["device"] = torch.cuda.get_device_name(device)
    else:
        facts["device"] = _processor()
        facts["threads"] = torch.get_num_threads()
        facts["cores"] = os.cpu_count()
        facts["instruction_set"] = _native.active_cpu_isa()
    return facts


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def table(rows: list[Row], unit: str) -> Table:
    """Contenders by sizes, for rows of one group; shares are of PyTorch's fastest backend."""
    result = Table(title=f"{rows[0].problem.group}: {unit}, and share of PyTorch's best")
    result.add_column("contender", overflow="fold")
    sizes = list(dict.fromkeys(row.problem.size for row in rows))
    for size in sizes:
        result.add_column(size, justify="right")
    best = {
        size: max(
            (r.rate for r in rows if r.problem.size == size and r.contender.startswith("PyTorch")),
            default=None,
        )
        for size in sizes
    }
    for contender in dict.fromkeys(row.contender for row in rows):
        cells = []
        for size in sizes:
            row = next(
                (r for r in rows if (r.contender, r.problem.size) == (contender, size)), None
            )
            if row is None:
                cells.append("refused")
                continue
            share, theirs = "", best[size]
            if theirs is not None:
                share = f" {row.rate / theirs:5.2f}x"
            cells.append(f"{row.rate / (1e12 if unit == 'TFLOP/s' else 1e9):.0f}{share}")
        result.add_row(contender, *cells)
    return result


def progression_table(rows: list[Row], steps: Mapping[str, str], unit: str) -> Table:
    """The progression, step by step, for rows of one group: rates, and shares of the reference.

    Args:
        rows: of one group of problems.
        steps: short forms by key, base to best; those that were not measured are left out.
        unit: of the rates.
    """
    reference = "PyTorch flash"  # FlashAttention-2
    result = Table(title=f"{rows[0].problem.group}, the progression: {unit}, and % of {reference}")
    result.add_column("step", justify="right")
    result.add_column("kernel")
    by_place = {(row.contender, row.problem.size): row for row in rows}
    sizes = list(dict.fromkeys(row.problem.size for row in rows))
    for size in sizes:
        result.add_column(size, justify="right")
    scale = 1e12 if unit == "TFLOP/s" else 1e9
    for step, (key, short) in enumerate(steps.items(), start=1):
        found = [by_place.get((key, size)) for size in sizes]
        if not any(found):
            continue
        cells = []
        for row, size in zip(found, sizes, strict=True):
            theirs = by_place.get((reference, size))
            share = f" {row.rate / theirs.rate:6.1%}" if row and theirs else ""
            cells.append(f"{row.rate / scale:.1f}{share}" if row else "refused")
        result.add_row(str(step), short, *cells)
    return result


def json_text(rows: Iterable[Row], device: torch.device) -> str:
    """The machine and every row; times in milliseconds, rates in GFLOP/s."""
    results = [
        {
            "contender": row.contender,
            **asdict(row.problem),
            "median_ms": row.seconds * 1e3,
            "gflops": row.rate / 1e9,
            "turns": row.turns,
        }
        for row in rows
    ]
    return json.dumps({"machine": machine(device), "results": results}, indent=1) + "\n"


def write_plot(rows: list[Row], unit: str, file: Path) -> None:
    """One panel a group: rate over sequence length, a line for each contender."""
    from matplotlib.figure import Figure

    groups = list(dict.fromkeys(row.problem.group for row in rows))
    figure = Figure(figsize=(6.5, 3.6 * len(groups)), layout="constrained")
    panels = figure.subplots(len(groups), squeeze=False)[:, 0]
    for panel, group in zip(panels, groups, strict=True):
        in_group = [row for row in rows if row.problem.group == group]
        for contender in dict.fromkeys(row.contender for row in in_group):
            points = [row for row in in_group if row.contender == contender]
            theirs = not contender.startswith("flash_forward.")
            panel.plot(
                [row.problem.seq_len for row in points],
                [row.rate / (1e12 if unit == "TFLOP/s" else 1e9) for row in points],
                marker="o",
                linestyle="--" if theirs else "-",
                label=contender if theirs else contender.split(".")[-1],
            )
        panel.set(title=group, xlabel="sequence length", ylabel=unit, xscale="log", ylim=(0, None))
        panel.set_xticks(lengths := sorted({row.problem.seq_len for row in in_group}), lengths)
        panel.minorticks_off()
        panel.legend(fontsize="small")
    figure.savefig(file)
