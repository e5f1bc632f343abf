"""What came out: rows, a table for each group of problems, which goals are reached, JSON, and a
plot."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from rich.table import Table

from runtime import _native, devices, packs

from ..output_file import write
from .clocks import Spread
from .intervals import CONFIDENCE, Interval
from .measure import Measured

SCALES = {"TFLOP/s": 1e12, "GFLOP/s": 1e9, "GB/s": 1e9}


class Problem(Protocol):
    """What is computed: a frozen dataclass of a family's own."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def group(self) -> str:
        """What the problems of one table share."""

    @property
    def size(self) -> str:
        """A column's head."""

    @property
    def extent(self) -> int:
        """Where it is on a plot's axis."""

    @property
    def operations(self) -> float:
        """How much is done, in the units whose rate is shown."""


@dataclass(frozen=True)
class Row:
    """One contender on one problem."""

    contender: str  # a key, "runtime.attention", "PyTorch <backend>", or FlashAttention-3
    problem: Problem
    seconds: Interval
    turns: int
    clocks: Mapping[str, Spread]  # while this problem was measured
    kernel: str | None = None  # the key of ours
    peer: str | None = None  # the fastest of the others, or None if nothing else ran
    ratio: Interval | None = None  # how many times as fast as the peer it is; of the peer, None

    @property
    def rate(self) -> Interval:
        """Operations a second."""
        operations, seconds = self.problem.operations, self.seconds
        return Interval(
            operations / seconds.high, operations / seconds.median, operations / seconds.low
        )


def rows_of(problem: Problem, measured: Measured, kernels: Mapping[str, str]) -> list[Row]:
    """What was measured on a problem, in the contenders' order; `kernels` are the keys of ours."""
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
        )
        for name in seconds
    ]


def machine(device: torch.device) -> dict[str, Any]:
    """What the figures depend on besides the code."""
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


def table(rows: list[Row], unit: str) -> Table:
    """Contenders by sizes, for rows of one group, and the clocks.

    A cell is a rate, ± how far its interval reaches, and how many times as fast as the fastest of
    the others that is, with the interval of that.
    """
    result = Table(title=f"{rows[0].problem.group}: {unit} (times the best of the others)")
    result.add_column("contender", overflow="fold")
    by_place = {(row.contender, row.problem.size): row for row in rows}
    sizes = list(dict.fromkeys(row.problem.size for row in rows))
    for size in sizes:
        result.add_column(size, justify="right", no_wrap=True)
    for contender in dict.fromkeys(row.contender for row in rows):
        found = [by_place.get((contender, size)) for size in sizes]
        result.add_row(contender, *(_cell(row, unit) if row else "refused" for row in found))
    clocks = [next(row.clocks for row in rows if row.problem.size == size) for size in sizes]
    for title, name, scale, end in _CLOCKS:
        if any(name in found for found in clocks):
            result.add_row(
                title,
                *(
                    f"{found[name].median / scale:.0f} ({getattr(found[name], end) / scale:.0f})"
                    if name in found
                    else ""
                    for found in clocks
                ),
                style="dim",
            )
    return result


# Title of a row, the name of a reading, what it is divided by, and which end is shown beside its
# median.
_CLOCKS = (
    ("SM clock, MHz (least)", "sm MHz", 1, "least"),
    ("power, W (most)", "milliwatts", 1000, "greatest"),
    ("clock, MHz (least)", "cpu kHz", 1000, "least"),
)


def _cell(row: Row, unit: str) -> str:
    rate = row.rate.scaled(1 / SCALES[unit])
    shown = f"{rate.median:.0f} ±{rate.reach:.0f}"
    if row.ratio is not None:
        return f"{shown} ({_ratio(row.ratio)})"
    return f"{shown} (1.00)" if row.peer is not None else shown


def _ratio(ratio: Interval, digits: int = 2) -> str:
    return f"{ratio.median:.{digits}f} [{ratio.low:.{digits}f}, {ratio.high:.{digits}f}]"


def goals_table(rows: Iterable[Row], goal_of: Callable[[Problem], float]) -> Table:
    """The fastest of ours on each problem, its ratio to the best of the others, and whether that
    reaches the goal; of problems on which something else ran."""
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


def json_text(
    rows: Iterable[Row], device: torch.device, goal_of: Callable[[Problem], float] | None = None
) -> str:
    """The machine and every row; times in milliseconds, rates in GFLOP/s, intervals as
    [low, high]."""
    results = []
    for row in rows:
        found = {
            "contender": row.contender,
            "kernel": row.kernel,
            **asdict(row.problem),
            "median_ms": row.seconds.median * 1e3,
            "interval_ms": [row.seconds.low * 1e3, row.seconds.high * 1e3],
            "gflops": row.rate.median / 1e9,
            "turns": row.turns,
            "peer": row.peer,
            "clocks": {name: asdict(spread) for name, spread in row.clocks.items()},
        }
        if row.ratio is not None:
            found["ratio"] = row.ratio.median
            found["ratio_interval"] = [row.ratio.low, row.ratio.high]
            if goal_of is not None and row.kernel is not None:
                found["goal"] = goal_of(row.problem)
        results.append(found)
    described = {"confidence": CONFIDENCE, "machine": machine(device)}
    return json.dumps({**described, "results": results}, indent=1) + "\n"


def why_no_plot(file: Path) -> str | None:
    """Why there can be no plot in a file of this name, or None."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        return f"{error}: pip install 'kernelmint[plots]'"
    formats = Figure().canvas.get_supported_filetypes()
    if file.suffix.removeprefix(".") not in formats:
        return f"got a name that ends in {file.suffix!r}, expected one of .{', .'.join(formats)}"
    return None


def write_plot(rows: list[Row], unit: str, file: Path, axis: str) -> None:
    """One panel a group: rate over extent, a line for each contender, bars for
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
            rates = [row.rate.scaled(1 / SCALES[unit]) for row in points]
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
        panel.set(title=group, xlabel=axis, ylabel=unit, xscale="log", ylim=(0, None))
        panel.set_xticks(lengths := sorted({row.problem.extent for row in in_group}), lengths)
        panel.minorticks_off()
        panel.legend(fontsize="small")
    drawn = io.BytesIO()
    figure.savefig(drawn, format=file.suffix[1:])
    write(file, drawn.getvalue())
