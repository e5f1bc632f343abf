"""Measures attention kernels beside every backend of PyTorch's attention, in one run."""

from __future__ import annotations

import itertools
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import click
import torch
from kernelmint.tools.bench import clocks, results
from kernelmint.tools.bench.measure import measure
from kernelmint.tools.listing import print_table
from kernelmint.tools.output_file import OutputFile, write
from kernelmint.tools.selection import for_device, keys_of_set, nothing_runs
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from codegen import options
from codegen.core.expressions import EVALUATION_ERRORS, INT, ExpressionError, parse, reason
from codegen.core.where import parameter_kind
from runtime import manifest
from runtime.operators import DTYPES

from .contenders import (
    ATTENTION,
    BACKENDS,
    FLASH_ATTENTION_3,
    attention_call,
    compiled_in,
    contender_call,
    kernel_call,
)
from .problems import CPU_SIZES, GPU_SIZES, Problem, usual_heads

FAMILY = "flash_forward"


def _sizes(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[int, int], ...]:
    found = []
    for value in values:
        size = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", value)
        if size is None:
            raise click.BadParameter(
                f"{value!r} is not a size: expected batch x length, such as 16x1024"
            )
        found.append((int(size[1]), int(size[2])))
    return tuple(found)


def _goal(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> Callable[[Problem], float] | None:
    if text is None:
        return None
    family = manifest.family(FAMILY)
    kinds = {p.name: parameter_kind(p) for p in family.parameters if p.name in Problem.PARAMETERS}
    try:
        expression = parse(text, {**kinds, **dict.fromkeys(family.symbols, INT)})
    except ExpressionError as error:
        raise click.BadParameter(str(error)) from None

    def goal(problem: Problem) -> float:
        try:
            return float(expression.evaluate(problem.values))
        except EVALUATION_ERRORS as error:
            place = f"{problem.group}, {problem.size}"
            raise click.UsageError(f"--goal has no value for {place}: {reason(error)}") from None

    return goal


def _plot(context: click.Context, parameter: click.Parameter, file: Path | None) -> Path | None:
    if file is not None and (why := results.why_no_plot(file)):
        raise click.BadParameter(f"{file}: {why}")
    return file


@click.command("flash_forward", context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--target",
    metavar="TARGET",
    help="The kernels of this target (default: cpu, or all a GPU can run).",
)
@options.where("kernels")
@options.set_name("The kernels of this set, built if no pack has them.")
@click.option(
    "--size",
    "sizes",
    callback=_sizes,
    multiple=True,
    metavar="SIZE",
    help="Batch x length, such as 16x1024; may be repeated.",
)
@click.option(
    "--dtype",
    "dtypes",
    type=click.Choice(list(DTYPES)),
    multiple=True,
    help="Only these dtypes; may be repeated.",
)
@click.option(
    "--d-head", "d_heads", type=int, multiple=True, help="Only these head dimensions; repeated."
)
@click.option("--causal/--no-causal", default=None, help="Only one of the two (default: both).")
@click.option(
    "--heads", type=click.IntRange(1), help="Query heads (default: 2048 / d, on a CPU 8)."
)
@click.option("--kv-heads", type=click.IntRange(1), help="Key heads (default: as query heads).")
@click.option(
    "--attention",
    "through_attention",
    is_flag=True,
    help="runtime.attention and what it chooses, instead of each kernel.",
)
@click.option(
    "--beside",
    type=click.Choice([*BACKENDS, FLASH_ATTENTION_3]),
    multiple=True,
    help="Only these contenders, repeatable (default: all that are there).",
)
@click.option(
    "--goal",
    metavar="EXPR",
    callback=_goal,
    help="How many times as fast as the fastest of the others it should be, an expression over "
    "dtype, d_head, causal and the sizes, e.g. '1.1 if Sq <= 1024 else 1'; says where it is.",
)
@click.option("--seconds", type=options.Duration("s"), default=0.3, help="Time for each figure.")
@click.option(
    "--processor-time",
    is_flag=True,
    help="On a CPU: one thread, and the processor's time, which leaves out other programs' turns.",
)
@click.option(
    "--json",
    "json_file",
    type=OutputFile(),
    help="Write machine and figures as JSON, after each table.",
)
@click.option(
    "--plot",
    "plot_file",
    type=OutputFile(),
    callback=_plot,
    help="Write a plot (.png, .svg, .pdf).",
)
def main(
    target: str | None,
    where: str | None,
    set_name: str | None,
    sizes: tuple[tuple[int, int], ...],
    dtypes: tuple[str, ...],
    d_heads: tuple[int, ...],
    causal: bool | None,
    heads: int | None,
    kv_heads: int | None,
    through_attention: bool,
    beside: tuple[str, ...],
    goal: Callable[[Problem], float] | None,
    seconds: float,
    processor_time: bool,
    json_file: Path | None,
    plot_file: Path | None,
) -> None:
    """Measure the median rates of the attention kernels, and of PyTorch's attention, on the same
    inputs.

    Contenders take turns. On a GPU the second-level cache is overwritten before each call and CUDA
    events give the time; on a CPU the clock does, with PyTorch's number of threads for all. A
    figure's interval holds the median with a confidence of 99.9%; that of a ratio comes from the
    ratios within rounds.

    \b
    Examples:
      kernelmint bench flash_forward --target cpu --size 1x1024 --d-head 64
    """
    if through_attention and set_name is not None:
        raise click.UsageError("--attention measures what runtime.attention chooses, not a set")
    if processor_time and target != "cpu":
        raise click.UsageError("--processor-time is for --target cpu")
    device, kernels = for_device(FAMILY, target, where, set_name)
    on_gpu = device.type == "cuda"
    kernels = [info for info in kernels if not info.parameters["trace"]]
    for name, wanted in (("dtype", dtypes), ("d_head", d_heads)):
        kernels = [info for info in kernels if not wanted or info.parameters[name] in wanted]
    if causal is not None:
        kernels = [info for info in kernels if info.parameters["causal"] is causal]
    if not kernels:
        raise nothing_runs()
    unit = "TFLOP/s" if on_gpu else "GFLOP/s"
    if processor_time:
        torch.set_num_threads(1)
    clock = time.process_time if processor_time else time.perf_counter
    sizes = sizes or (GPU_SIZES if on_gpu else CPU_SIZES)
    problems = []
    for dtype, d_head, is_causal in dict.fromkeys(map(compiled_in, kernels)):
        query_heads = heads or usual_heads(d_head, on_gpu)
        if query_heads % (kv_heads or query_heads):
            raise click.UsageError(f"--kv-heads {kv_heads} does not divide {query_heads} heads")
        problems += [
            Problem(dtype, d_head, is_causal, *size, query_heads, kv_heads or query_heads)
            for size in sizes
        ]

    if goal is not None:
        for problem in problems:
            goal(problem)  # what has no value is said before anything is measured
    machine = results.machine(device)
    # Not a terminal: as wide as the tables are.
    console = Console(width=None if sys.stdout.isatty() else 250)
    console.print(
        f"{machine['device']}, PyTorch {machine['torch']}"
        + ("" if on_gpu else f", threads: {machine['threads']}, {machine['instruction_set']}")
    )
    if on_gpu and not clocks.read(device):
        console.print("clocks and power are not known: NVML (libnvidia-ml.so.1) cannot be used")
    short_forms = {info.key: info.short or info.key for info in kernels}
    progression = {key: short_forms.get(key, key) for key in keys_of_set(FAMILY, "progression")}
    rows: list[results.Row] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(problems))
        for group, of_group in itertools.groupby(problems, key=lambda p: p.group):
            absent: dict[str, list[str]] = {}  # sizes, by contender that was asked for
            for problem in of_group:
                progress.update(task, description=f"{group}, {problem.size}")
                q, k, v = problem.inputs(device)
                calls = {
                    name: call
                    for name in beside or (*BACKENDS, FLASH_ATTENTION_3)
                    if (call := contender_call(name, problem, q, k, v)) is not None
                }
                for name in beside:
                    if name not in calls:
                        absent.setdefault(name, []).append(problem.size)
                ours: dict[str, str] = {}
                if through_attention:
                    calls[ATTENTION], ours[ATTENTION] = attention_call(problem, q, k, v)
                else:
                    for info in kernels:
                        if compiled_in(info) == (problem.dtype, problem.d_head, problem.causal):
                            calls[info.key], ours[info.key] = kernel_call(info, q, k, v), info.key
                rows += results.rows_of(problem, measure(calls, device, seconds, clock), ours)
                progress.advance(task)
            rows_of_group = [row for row in rows if row.problem.group == group]
            print_table(console, results.table(rows_of_group, unit))
            for name, refused in absent.items():
                console.print(f"{name} is not installed, or refuses this: {', '.join(refused)}")
            if any(row.contender in progression for row in rows_of_group):
                console.print(progression_table(rows_of_group, progression, unit))
            if json_file is not None:
                write(json_file, results.json_text(rows, device, goal))
    if goal is not None:
        print_table(console, results.goals_table(rows, goal))
    if plot_file is not None:
        results.write_plot(rows, unit, plot_file, "sequence length")


def progression_table(rows: list[results.Row], steps: Mapping[str, str], unit: str) -> Table:
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
    scale = results.SCALES[unit]
    for step, (key, short) in enumerate(steps.items(), start=1):
        found = [by_place.get((key, size)) for size in sizes]
        if not any(found):
            continue
        cells = []
        for row, size in zip(found, sizes, strict=True):
            theirs = by_place.get((reference, size))
            share = f" {row.rate.median / theirs.rate.median:6.1%}" if row and theirs else ""
            cells.append(f"{row.rate.median / scale:.1f}{share}" if row else "refused")
        result.add_row(str(step), short, *cells)
    return result
