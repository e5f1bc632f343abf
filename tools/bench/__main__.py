"""Measures a family's kernels beside what else computes the same: `kernelmint bench`."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.progress import Progress

import runtime
from codegen import completion, options
from codegen.core.expressions import (
    BOOL,
    EVALUATION_ERRORS,
    FLOAT,
    INT,
    ExpressionError,
    parse,
    reason,
)
from codegen.core.where import parameter_kind
from runtime import KernelInfo, manifest

from ..families import all_named, hook, oracle
from ..listing import print_table
from ..output_file import OutputFile, write
from ..selection import for_device, nothing_runs
from . import clocks, results
from .driver import KERNELS, Driver, contenders_of, problems_of
from .hooks import Problem

_KINDS = {bool: BOOL, int: INT, float: FLOAT}
_VALUES = re.compile(r"\w+=[^,=]+(,\w+=[^,=]+)*")


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def _values(case: str) -> dict[str, tuple[Any, ...]]:
    """Returns the values of `d_head=64,d_head=128,causal=true`, by name."""
    values: dict[str, tuple[Any, ...]] = {}
    for name, _, value in (pair.partition("=") for pair in case.split(",")):
        values[name] = (*values.get(name, ()), _value(value))
    return values


def _plot(context: click.Context, parameter: click.Parameter, file: Path | None) -> Path | None:
    if file is not None and (why := results.why_no_plot(file)):
        raise click.BadParameter(f"{file}: {why}")
    return file


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("family_or_folder", metavar="FAMILY|FOLDER", shell_complete=completion.families)
@click.option(
    "--target", metavar="TARGET", shell_complete=completion.targets,
    help="The kernels of this target (default: cpu, or all a GPU can run).",
)  # fmt: skip
@options.where("kernels")
@options.set_name("The kernels of this set, built if no pack has them.")
@click.option(
    "--case", "cases", multiple=True, metavar="CASE",
    help="Cells of these values, such as d_head=64,d_head=128,causal=true or M=64,N=4096; without "
    "'=' a regular expression that tables' titles and columns match; may be repeated.",
)  # fmt: skip
@click.option(
    "--contender", "names", multiple=True, metavar="NAME",
    help=f"Only this contender; '{KERNELS}' are all kernels; may be repeated (default: all).",
)  # fmt: skip
@click.option(
    "--seconds", type=options.Duration("s"), default=0.3, show_default=True,
    help="Time for each figure.",
)  # fmt: skip
@click.option("--host", is_flag=True, help="What a call costs the host, which waits for nothing.")
@click.option(
    "--processor-time", is_flag=True,
    help="On a CPU: one thread, and the processor's time, which leaves out other programs' turns.",
)  # fmt: skip
@click.option(
    "--goal", metavar="EXPR",
    help="How many times as fast as the fastest of the others a kernel should be, an expression "
    "over a cell's values, e.g. '1.1 if seq_len <= 1024 else 1'; says where it is.",
)  # fmt: skip
@click.option(
    "--csv", "csv_file", type=OutputFile(), metavar="FILE",
    help="Write the figures as CSV, after each table.",
)  # fmt: skip
@click.option(
    "--json", "json_file", type=OutputFile(), metavar="FILE",
    help="Write machine and figures as JSON, after each table.",
)  # fmt: skip
@click.option(
    "--plot", "plot_file", type=OutputFile(), callback=_plot, metavar="FILE",
    help="Write a plot (.png, .svg, .pdf).",
)  # fmt: skip
def main(
    family_or_folder: str,
    target: str | None,
    where: str | None,
    set_name: str | None,
    cases: tuple[str, ...],
    names: tuple[str, ...],
    seconds: float,
    host: bool,
    processor_time: bool,
    goal: str | None,
    csv_file: Path | None,
    json_file: Path | None,
    plot_file: Path | None,
) -> None:
    """Measures the kernels of a family, or of each family in a folder, in one run, beside what else
    computes the same.

    Contenders take turns on the same inputs, after their results were compared with those of the
    family's reference. On a GPU the second-level cache is overwritten before each call and CUDA
    events give the time; on a CPU the clock does, with PyTorch's number of threads for all. A
    figure's interval holds the median with a confidence of 99.9%; that of a ratio comes from the
    ratios within rounds. The exit status is 1 if a contender's results are wrong.

    \b
    Examples:
      kernelmint bench my_family --csv figures.csv
      kernelmint bench kernel_specs/my_family --case M=64,N=4096 --contender kernels
    """
    families = all_named(family_or_folder)
    clock = time.process_time if processor_time else time.perf_counter
    plans: list[_Plan] = []
    errors: dict[str, str] = {}
    for family, folder in families.items():
        of_set = set_name or ("default" if folder else None)
        try:
            device, kernels = for_device(family, target, where, of_set)
            if not kernels:
                raise nothing_runs()
            if processor_time:
                if device.type != "cpu":
                    raise click.UsageError("--processor-time is for --target cpu")
                torch.set_num_threads(1)
            plans.append(_plan(family, kernels, device, cases, names, seconds, clock, host))
        except click.ClickException as error:
            if len(families) == 1:
                raise
            errors[family] = error.message
    if not plans:
        raise click.UsageError("; ".join(f"{name}: {text}" for name, text in errors.items()))
    if plot_file is not None and len(plans) > 1:
        raise click.UsageError(f"--plot: got {len(plans)} families, expected one")
    goals = {} if goal is None else {k: v for plan in plans for k, v in _goals(plan, goal).items()}
    goal_of = None if goal is None else goals.__getitem__
    # Not a terminal: as wide as the tables are.
    console = Console(width=None if sys.stdout.isatty() else 250)
    _print_machine(console, device)
    for family, text in errors.items():
        console.print(f"{family}: {text}", highlight=False, soft_wrap=True)
    rows: list[results.Row] = []
    remarks: list[results.Remark] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=sum(len(plan.problems) for plan in plans))
        for plan in plans:
            if len(plans) > 1:
                console.print(plan.family, highlight=False)
            _print_contenders(console, plan, names)
            tables: Callable[..., Sequence[Any]] = hook(
                plan.family, "bench_tables", lambda rows, unit: ()
            )
            for group in dict.fromkeys(problem.group for problem in plan.problems):
                of_group: list[results.Row] = []
                said: list[results.Remark] = []
                for problem in (p for p in plan.problems if p.group == group):
                    progress.update(task, description=f"{group}, {problem.size}")
                    try:
                        one = plan.driver.measured(problem, plan.kernels)
                    except (ValueError, KeyError, runtime.BuildError) as error:
                        raise click.UsageError(str(error.args[0])) from None
                    of_group += one[0]
                    said += one[1]
                    if device.type == "cuda":
                        torch.cuda.empty_cache()
                    progress.advance(task)
                unit = results.unit_of(problem, device, host)
                if of_group:
                    print_table(console, results.table(of_group, unit, said))
                    for more in tables(of_group, unit):
                        console.print(more)
                results.print_remarks(console, said)
                rows += of_group
                remarks += said
                if csv_file is not None:
                    write(csv_file, results.csv_text(rows, remarks, goal_of))
                if json_file is not None:
                    write(json_file, results.json_text(rows, remarks, goal_of, device))
    if goal_of is not None:
        print_table(console, results.goals_table(rows, goal_of))
    if plot_file is not None and rows:
        results.write_plot(rows, unit, plot_file)
    if any(remark.wrong for remark in remarks) or not rows:
        sys.exit(1)


@dataclass(frozen=True)
class _Plan:
    """A family's cells, and how they are measured."""

    family: str
    kernels: Sequence[KernelInfo]
    problems: Sequence[Problem]
    driver: Driver
    absent: Mapping[str, str]  # why a contender cannot run


def _plan(
    family: str,
    kernels: Sequence[KernelInfo],
    device: torch.device,
    cases: Sequence[str],
    names: Sequence[str],
    seconds: float,
    clock: Callable[[], float],
    host: bool,
) -> _Plan:
    """Raises click.UsageError if the family has no such contender or cell."""
    try:
        contenders, absent = contenders_of(family, names, device)
        problems = problems_of(family, kernels, device, [_values(c) for c in cases if "=" in c])
    except (ValueError, KeyError, runtime.BuildError) as error:
        raise click.UsageError(str(error.args[0])) from None
    if expressions := [case for case in cases if "=" not in case]:
        expression = "|".join(f"(?:{one})" for one in expressions)
        problems = [p for p in problems if re.search(expression, f"{p.group} {p.size}")]
    if not problems:
        raise click.UsageError("no cell has these values, or no kernel suits it")
    described = manifest.family(family)
    reference = None if described.reference is None else oracle(family)
    changed = [argument.name for argument in described.inputs if argument.mutated]
    driver = Driver(reference, changed, device, contenders, seconds, clock, host)
    return _Plan(family, kernels, problems, driver, absent)


def _goals(plan: _Plan, text: str) -> dict[Problem, float]:
    """Returns the goal of each problem."""
    values = plan.problems[0].as_columns()
    kinds = {name: _KINDS[type(value)] for name, value in values.items() if type(value) in _KINDS}
    parameters = manifest.family(plan.family).parameters
    kinds |= {p.name: parameter_kind(p) for p in parameters if p.name in values}
    try:
        expression = parse(text, kinds)
    except ExpressionError as error:
        raise click.BadParameter(str(error), param_hint="--goal") from None
    goals = {}
    for problem in plan.problems:
        try:
            goals[problem] = float(expression.evaluate(problem.as_columns()))
        except EVALUATION_ERRORS as error:
            place = f"{problem.group}, {problem.size}"
            raise click.UsageError(f"--goal has no value for {place}: {reason(error)}") from None
    return goals


def _print_contenders(console: Console, plan: _Plan, names: Sequence[str]) -> None:
    for name, contender in plan.driver.contenders.items():
        if contender is not None and (version := contender.version()):
            console.print(f"{name}: {version}", highlight=False)
    for name, why in plan.absent.items():
        if names or "not installed" in why:
            console.print(f"{name}: {why}", highlight=False, soft_wrap=True)


def _print_machine(console: Console, device: torch.device) -> None:
    machine: Mapping[str, Any] = results.machine(device)
    threads = "" if device.type == "cuda" else (
        f", threads: {machine['threads']}, {machine['instruction_set']}"
    )  # fmt: skip
    console.print(f"{machine['device']}, PyTorch {machine['torch']}{threads}")
    if device.type == "cuda" and not clocks.read(device):
        console.print("clocks and power are not known: NVML (libnvidia-ml.so.1) cannot be used")


if __name__ == "__main__":
    sys.exit(main())
