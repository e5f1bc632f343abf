"""Figures: rows, a table for each group of problems, which goals are reached, CSV, JSON, and a
plot."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from runtime import _native, devices, packs

from ..output_file import write
from .clocks import Spread
from .hooks import Problem
from .intervals import CONFIDENCE, Interval
from .measure import Measured

_RATES = {"TFLOP/s": 1e12, "GFLOP/s": 1e9, "GB/s": 1e9}
_TIMES = {"ms": 1e-3, "us": 1e-6}


def unit_of(problem: Problem, device: torch.device, host: bool) -> str:
    """Returns the unit of a problem's figures: a rate's, or a time's."""
    if host:
        return "us"
    flops = "TFLOP/s" if device.type == "cuda" else "GFLOP/s"
    return {"FLOP/s": flops, "B/s": "GB/s", "s": "ms"}[problem.unit]


@dataclass(frozen=True)
class Row:
    """One contender on one problem."""

    contender: str  # a key, or a contender's name
    problem: Problem
    seconds: Interval
    turns: int
    clocks: Mapping[str, Spread]  # while this problem was measured
    kernel: str | None = None  # the key of ours
    peer: str | None = None  # the fastest of the others, or None if nothing else ran
    ratio: Interval | None = None  # how many times as fast as the peer it is; of the peer, None
    notes: Mapping[str, str] = field(default_factory=dict)  # below the problem's column

    @property
    def rate(self) -> Interval:
        """Returns the operations a second."""
        operations, seconds = self.problem.operations, self.seconds
        return Interval(
            operations / seconds.high, operations / seconds.median, operations / seconds.low
        )

    def figure(self, unit: str) -> Interval:
        """Returns the rate, or the time, in a unit."""
        if unit in _TIMES:
            return self.seconds.scaled(1 / _TIMES[unit])
        return self.rate.scaled(1 / _RATES[unit])


@dataclass(frozen=True)
class Remark:
    """Why a contender was not measured on a problem, or not as others were."""

    contender: str
    problem: Problem
    text: str
    wrong: bool = False  # the results are wrong, or a kernel of ours failed


def rows_of(
    problem: Problem,
    measured: Measured,
    kernels: Mapping[str, str],
    notes: Mapping[str, str] | None = None,
) -> list[Row]:
    """Returns what was measured on a problem, in the contenders' order; `kernels` are the keys of
    ours."""
    seconds = {name: measured.seconds(name) for name in measured.contenders}
    others = [name for name in seconds if name not in kernels]
    peer = min(others, key=lambda name: seconds[name].median, default=None)
    return [
        Row(
            name,
            problem,
            seconds[name],
            len(measured.times(name)),
            measured.clocks,
            kernels.get(name),
            peer,
            None if peer in (None, name) else measured.ratio(name, str(peer)),
            notes or {},
        )
        for name in seconds
    ]


def machine(device: torch.device) -> dict[str, Any]:
    """Describes what the figures depend on besides the code."""
    described: dict[str, Any] = {"torch": torch.__version__, "compiler": _native.compiler}
    described["packs"] = {pack.name: dict(pack.settings) for pack in packs.all_packs()}
    if device.type == "cuda":
        described["device"] = torch.cuda.get_device_name(device)
    else:
        described["device"] = devices.processor()
        described["threads"] = torch.get_num_threads()
        described["cores"] = os.cpu_count()
        described["instruction_set"] = _native.active_cpu_isa()
    return described


def table(rows: list[Row], unit: str, remarks: Sequence[Remark] = ()) -> Table:
    """Returns contenders by sizes, for the rows of one group, and the clocks.

    A cell is a figure, ± how far its interval reaches, and how many times as fast as the fastest of
    the others that is, with the interval of that.
    """
    result = Table(title=f"{rows[0].problem.group}: {unit} (times the best of the others)")
    result.add_column("contender", overflow="fold")
    by_place = {(row.contender, row.problem.size): row for row in rows}
    wrong = {(r.contender, r.problem.size) for r in remarks if r.wrong}
    problems = {row.problem.size: row.problem for row in rows}
    for size in problems:
        result.add_column(size, justify="right", no_wrap=True)
    contenders = dict.fromkeys([*(row.contender for row in rows), *(name for name, _ in wrong)])

    def cell(contender: str, size: str) -> str:
        if row := by_place.get((contender, size)):
            return _cell(row, unit)
        return "WRONG" if (contender, size) in wrong else "refused"

    for contender in contenders:
        result.add_row(contender, *(cell(contender, size) for size in problems))
    first = [next(row for row in rows if row.problem.size == size) for size in problems]
    for title in dict.fromkeys(title for row in first for title in row.notes):
        result.add_row(title, *(row.notes.get(title, "") for row in first), style="dim")
    for title, name, scale, end in _CLOCKS:
        readings = [row.clocks.get(name) for row in first]
        if any(readings):
            cells = (
                f"{r.median / scale:.0f} ({getattr(r, end) / scale:.0f})" if r else ""
                for r in readings
            )
            result.add_row(title, *cells, style="dim")
    return result


# Title of a row, the name of a reading, what it is divided by, and which end is shown beside its
# median.
_CLOCKS = (
    ("SM clock, MHz (least)", "sm MHz", 1, "least"),
    ("power, W (most)", "milliwatts", 1000, "greatest"),
    ("clock, MHz (least)", "cpu kHz", 1000, "least"),
)


def _cell(row: Row, unit: str) -> str:
    figure = row.figure(unit)
    digits = 0
    if unit in _TIMES:  # three of what varies least
        digits = max(0, 3 - math.ceil(math.log10(max(figure.median, 1e-9))))
    shown = f"{figure.median:.{digits}f} ±{figure.reach:.{digits}f}"
    if row.ratio is not None:
        return f"{shown} ({_ratio(row.ratio)})"
    return f"{shown} (1.00)" if row.peer is not None else shown


def _ratio(ratio: Interval, digits: int = 2) -> str:
    return f"{ratio.median:.{digits}f} [{ratio.low:.{digits}f}, {ratio.high:.{digits}f}]"


def print_remarks(console: Console, remarks: Sequence[Remark]) -> None:
    """Prints a line for each contender and reason, with the sizes that it is about."""
    sizes: dict[tuple[str, str], list[str]] = {}
    for remark in remarks:
        what = f"WRONG: {remark.text}" if remark.wrong else remark.text
        sizes.setdefault((remark.contender, what), []).append(remark.problem.size)
    for (contender, what), of in sizes.items():
        console.print(f"{contender}: {what} ({', '.join(of)})", highlight=False, soft_wrap=True)


def goals_table(rows: Iterable[Row], goal_of: Callable[[Problem], float]) -> Table:
    """Returns the fastest of ours on each problem, its ratio to the best of the others, and whether
    that reaches the goal, of problems on which something else ran."""
    best: dict[Problem, Row] = {}
    for row in rows:
        if row.kernel is not None and row.ratio is not None:
            other = best.get(row.problem)
            if other is None or row.seconds.median < other.seconds.median:
                best[row.problem] = row
    ratios = {problem: row.ratio for problem, row in best.items() if row.ratio is not None}
    reached = sum(ratio.median >= goal_of(problem) for problem, ratio in ratios.items())
    surely = sum(ratio.low >= goal_of(problem) for problem, ratio in ratios.items())
    result = Table(
        title=f"the goal is reached in {reached} of {len(best)} cells, "
        f"in {surely} by the whole interval"
    )
    for column in ("problem", "size", "kernel", "beside", "ratio", "goal", ""):
        result.add_column(column, overflow="fold")
    for problem, ratio in ratios.items():
        row, goal = best[problem], goal_of(problem)
        missing = f"{goal - ratio.median:.3f} short"
        result.add_row(
            problem.group,
            problem.size,
            (row.kernel or "").split(".")[-1],
            row.peer,
            _ratio(ratio, 3),
            f"{goal:.2f}",
            "reached" if ratio.median >= goal else missing,
        )
    return result


def csv_text(
    rows: Iterable[Row], remarks: Iterable[Remark], goal_of: Callable[[Problem], float] | None
) -> str:
    """Returns a line for each row, and for each contender that was not measured one that says why:
    times in milliseconds, rates in GFLOP/s or GB/s, the medians of clocks and power."""
    lines: list[dict[str, Any]] = []
    for row in rows:
        line = _record(row, goal_of)
        clocks, interval = line.pop("clocks"), line.pop("interval_ms")
        line |= line.pop("notes", {})
        line |= {"low_ms": interval[0], "high_ms": interval[1]}
        if "ratio_interval" in line:
            line["ratio_low"], line["ratio_high"] = line.pop("ratio_interval")
        lines.append(line | {name: spread["median"] for name, spread in clocks.items()})
    lines += [
        {"contender": r.contender, **r.problem.as_columns(), "remark": r.text} for r in remarks
    ]
    names = dict.fromkeys(name for line in lines for name in line)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def json_text(
    rows: Iterable[Row],
    remarks: Iterable[Remark],
    goal_of: Callable[[Problem], float] | None,
    device: torch.device,
) -> str:
    """Returns the machine, every row and every remark; times in milliseconds, rates in GFLOP/s or
    GB/s, intervals as [low, high]."""
    return (
        json.dumps(
            {
                "confidence": CONFIDENCE,
                "machine": machine(device),
                "results": [_record(row, goal_of) for row in rows],
                "remarks": [
                    {"contender": r.contender, **r.problem.as_columns(), "remark": r.text}
                    for r in remarks
                ],
            },
            indent=1,
        )
        + "\n"
    )


def _record(row: Row, goal_of: Callable[[Problem], float] | None) -> dict[str, Any]:
    record = {
        "contender": row.contender,
        "kernel": row.kernel,
        **row.problem.as_columns(),
        "median_ms": row.seconds.median * 1e3,
        "interval_ms": [row.seconds.low * 1e3, row.seconds.high * 1e3],
        "gflops": row.rate.median / 1e9,
        "turns": row.turns,
        "peer": row.peer,
        "clocks": {name: asdict(spread) for name, spread in row.clocks.items()},
    }
    if row.notes:
        record["notes"] = dict(row.notes)
    if row.ratio is not None:
        record["ratio"] = row.ratio.median
        record["ratio_interval"] = [row.ratio.low, row.ratio.high]
        if goal_of is not None and row.kernel is not None:
            record["goal"] = goal_of(row.problem)
    return record


def why_no_plot(file: Path) -> str | None:
    """Returns why there can be no plot in a file of this name, or None."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        return f"{error}: pip install 'kernelmint[plots]'"
    formats = Figure().canvas.get_supported_filetypes()
    if file.suffix.removeprefix(".") not in formats:
        return f"got a name that ends in {file.suffix!r}, expected one of .{', .'.join(formats)}"
    return None


def write_plot(rows: list[Row], unit: str, file: Path) -> None:
    """Writes one panel a group: figures over extents, a line for each contender, bars for
    intervals."""
    from matplotlib.figure import Figure

    groups = list(dict.fromkeys(row.problem.group for row in rows))
    figure = Figure(figsize=(6.5, 3.6 * len(groups)), layout="constrained")
    panels = figure.subplots(len(groups), squeeze=False)[:, 0]
    for panel, group in zip(panels, groups, strict=True):
        in_group = [row for row in rows if row.problem.group == group]
        for contender in dict.fromkeys(row.contender for row in in_group):
            points = [row for row in in_group if row.contender == contender]
            theirs = points[0].kernel is None
            rates = [row.figure(unit) for row in points]
            panel.errorbar(
                [row.problem.extent for row in points],
                [rate.median for rate in rates],
                [
                    [rate.median - rate.low for rate in rates],
                    [rate.high - rate.median for rate in rates],
                ],
                marker="o",
                capsize=3,
                linestyle="--" if theirs else "-",
                label=contender if theirs else contender.split(".")[-1],
            )
        panel.set(
            title=group, xlabel=in_group[0].problem.axis, ylabel=unit, xscale="log", ylim=(0, None)
        )
        panel.set_xticks(lengths := sorted({row.problem.extent for row in in_group}), lengths)
        panel.minorticks_off()
        panel.legend(fontsize="small")
    drawn = io.BytesIO()
    figure.savefig(drawn, format=file.suffix[1:])
    write(file, drawn.getvalue())
