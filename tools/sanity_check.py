"""Every kernel of this build against its family's reference, one line each.

    kernelmint sanity-check [FAMILY] [--kernel KEY] [--range] [--where EXPR] [--json]

FAMILY is a family's name, or the folder of a family or a group; without it, all families that name
a reference are checked. KEY is a key or a short form; without it, the variable KERNELS selects
(tools/selection.py). A kernel's calls and their right results come from tools/problem.py; a
family's tools.py may add to them. The outputs are poisoned before the call. Exits with 1 if a
kernel mismatches, or if none was compared, and for one that mismatches prints how many elements
differ along each dimension of the result.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Sequence
from shutil import get_terminal_size
from typing import Any

import click
import torch
from torch import Tensor

import runtime
from codegen import completion, options
from codegen.core.words import counted
from runtime import KernelInfo, manifest, packs
from runtime.operators import DTYPES

from .comparison import Difference
from .families import HOOKS, all_named, hook, know, path_of
from .problem import UNITS, NoProblemError, cases, cases_of, of_case, unseen
from .selection import Selected, select
from .text import number_lines


def check(info: KernelInfo, *, counting: bool, seed: int) -> list[Difference]:
    """Runs a kernel on each of its family's cases; returns its differences from the expected
    results. Without any, nothing was compared: `why_not_compared` says why."""
    device = torch.device("cuda" if info.is_cuda else "cpu")
    differences = []
    for case in cases_of(info):
        problem = of_case(info, case, device, counting=counting, seed=seed)
        differences += problem.check(runtime.kernel(info.key))
    return differences


def why_not_compared(info: KernelInfo) -> str:
    """Returns advice on a kernel of which nothing was compared."""
    family = info.family
    if not cases_of(info):
        return f"no case covers it: add one to CASES in {path_of(family, HOOKS)}"
    return f"its cases ask for no element: CASES in {path_of(family, HOOKS)} may say which"


def unchecked(kernels: Sequence[KernelInfo]) -> str | None:
    """Returns a note on the results of a family's kernels that no case of the family asks for."""
    each = [unseen(info) for info in kernels]
    names = [name for name in each[0] if all(name in other for other in each)] if each else []
    if not names:
        return None
    return f"not checked, since no case of these kernels asks for it: {', '.join(names)}"


def where_it_differs(difference: Difference) -> str:
    """Returns the number of mismatches at each index of each dimension, summed over the others."""
    assert difference.failing is not None
    assert difference.worst is not None
    count = difference.failing.double()
    lines = []
    for dim, name in enumerate(difference.worst.names):
        if count.shape[dim] > 1:
            others = [d for d in range(count.dim()) if d != dim]
            along = count.sum(others) if others else count
            lines.append(f"  by {name} ({along.numel()}):")
            lines += [f"    {i:5}: {line}" for i, line in _by_eight(along)]
    return "\n".join(lines)


def _by_eight(counts: Tensor) -> list[tuple[int, str]]:
    """Yields lines of 8 counts that are not all zero, each with the index of its first."""
    groups = ((i, counts[i : i + 8]) for i in range(0, counts.numel(), 8))
    return [(i, next(number_lines(g, decimals=0))) for i, g in groups if bool(g.any())]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("family", required=False, shell_complete=completion.families)
@click.option(
    "--kernel",
    metavar="KEY",
    shell_complete=completion.keys,
    help="Only this kernel, by key or short form.",
)
@options.where("kernels")
@click.option("-r", "--range", "counting", is_flag=True, help="Inputs that count up.")
@click.option("--seed", default=0, show_default=True, help="Of the normal inputs.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def main(
    family: str | None,
    kernel: str | None,
    where: str | None,
    counting: bool,
    seed: int,
    as_json: bool,
) -> None:
    """Checks the built kernels of FAMILY (default: of all families with a reference) that can run
    here against its reference.

    \b
    Examples:
      kernelmint sanity-check my_family --where "dtype == bf16"
      kernelmint sanity-check --kernel my_family.cpu.f32-n8192 --range
    """
    try:
        chosen = selected_of(family, kernel, where)
        runnable = {
            name: [info for info in selected.kernels if info.available]
            for name, selected in chosen.items()
        }
        if not any(runnable.values()):
            reason = next(_reason(selected.kernels) for selected in chosen.values())
            raise click.ClickException(f"nothing can run here: {reason}")
        if as_json:
            kernels = [
                _as_json(info, check(info, counting=counting, seed=seed))
                for info in itertools.chain(*runnable.values())
            ]
            is_wrong = any(kernel["passed"] is False for kernel in kernels)
            left = [i for selected in chosen.values() for i in selected.kernels if i.reason]
            report = {
                "seed": None if counting else seed,
                "kernels": kernels,
                "not_run": [{"key": info.key, "reason": info.reason} for info in left],
            }
            click.echo(json.dumps(report, indent=1))
            sys.exit(is_wrong or not any(kernel["compared"] for kernel in kernels))
        failed, compared = [], 0
        for name, selected in chosen.items():
            if runnable[name]:
                wrong, right = _check_all(name, selected, runnable[name], counting, seed)
                failed += wrong
                compared += len(wrong) + right
    except (ValueError, KeyError, runtime.TargetUnavailable, runtime.BuildError) as error:
        raise click.UsageError(str(error)) from None
    except NoProblemError as error:
        raise click.ClickException(str(error)) from None
    for key in failed:
        click.echo(f"FAILED: {key}", err=True)
    sys.exit(bool(failed) or not compared)


def selected_of(family: str | None, kernel: str | None, where: str | None) -> dict[str, Selected]:
    """Returns the selected kernels by family; families without a selected kernel are left out,
    unless all are."""
    names = [*all_named(family)] if family is not None else None
    if kernel is not None:
        know(kernel)
        info = runtime.kernel(kernel, build=True).info
        if names is not None and info.family not in names:
            raise ValueError(
                f"{info.key}: got a kernel of {info.family}, expected one of {', '.join(names)}"
            )
        return {info.family: Selected(info.key, [info])}
    if names is not None and len(names) == 1:
        return {names[0]: select(names[0], where)}
    selected, errors = {}, []
    for name in packs.families() if names is None else names:
        if manifest.family(name).reference is not None:
            try:
                selected[name] = select(name, where)
            except (ValueError, runtime.BuildError) as error:
                errors.append(str(error))
    if not selected:
        raise ValueError("; ".join(dict.fromkeys(errors)) or "no family names a reference")
    return selected


def _check_all(
    family: str, chosen: Selected, runnable: list[KernelInfo], counting: bool, seed: int
) -> tuple[list[str], int]:
    """Checks a family's kernels and prints the results; returns the keys of the wrong ones, and the
    number of right ones."""
    sizes = "; ".join(
        ", ".join(f"{name} {size}" for name, size in case.sizes.items()) for case in cases(family)
    )
    magnitude = hook(family, "magnitude")
    what = magnitude.__doc__.partition(":")[0] if magnitude else "the largest |reference|"
    units = ", ".join(f"{UNITS[d]:.1e} for {n}" for n, d in DTYPES.items() if d in UNITS)
    rule = f"|output - reference| <= unit * (|reference| + {what}), unit {units}"
    if hook(family, "differences"):
        rule = f"right by the rule of {path_of(family, HOOKS)}"
    click.echo(
        f"{chosen.description}: {counted(len(runnable), 'kernel')} of {family}; {sizes}; "
        f"{'counting' if counting else f'normal, seed {seed}'}; {rule}"
    )
    width = max(len(info.key) for info in runnable)
    failed, passed = [], 0
    for info in runnable:
        differences = check(info, counting=counting, seed=seed)
        if not differences:
            click.echo(f"{info.key:{width}}  not compared: {why_not_compared(info)}")
            continue
        wrong = [difference for difference in differences if not difference.passed]
        beyond, compared, most = _totals(differences)
        figures = (
            f"{beyond}/{compared} mismatched ({beyond / max(compared, 1):.3%})  "
            f"max |d| {most:.2e}  {'FAILED' if wrong else 'ok'}"
        )
        narrow = sys.stdout.isatty() and width + len(figures) > get_terminal_size().columns - 2
        click.echo(f"{info.key}\n  {figures}" if narrow else f"{info.key:{width}}  {figures}")
        failed += [info.key] if wrong else []
        passed += not wrong
        for difference in wrong:
            click.echo(f"  {difference}")
            if difference.failing is not None:
                click.echo(where_it_differs(difference))
    left = len(chosen.kernels) - len(runnable)
    click.echo(
        f"{passed} of {len(runnable)} right"
        + (f"; {others} not compared" if (others := len(runnable) - passed - len(failed)) else "")
        + (f"; {left} built ones cannot run here: {_reason(chosen.kernels)}" if left else "")
    )
    if note := unchecked(runnable):
        click.echo(note)
    return failed, passed


def _totals(differences: list[Difference]) -> tuple[int, int, float]:
    """Returns totals of all cases and results: mismatched elements, compared ones, the greatest
    difference."""
    most = max((d.max_abs for d in differences if d.compared), default=0.0)
    return sum(d.beyond for d in differences), sum(d.compared for d in differences), most


def _as_json(info: KernelInfo, differences: list[Difference]) -> dict[str, Any]:
    """Returns a kernel's differences, for programs; a number that is not finite is null, and so is
    `passed` if nothing was compared."""
    beyond, compared, most = _totals(differences)
    if not differences:
        return {
            "key": info.key,
            "passed": None,
            "mismatched": 0,
            "compared": 0,
            "max_abs": None,
            "worst": f"not compared: {why_not_compared(info)}",
        }
    shown = next(
        (difference for difference in differences if not difference.passed), differences[0]
    )
    return {
        "key": info.key,
        "passed": all(d.passed for d in differences),
        "mismatched": beyond,
        "compared": compared,
        "max_abs": most if math.isfinite(most) else None,
        "worst": shown.problem if shown.worst is None else str(shown.worst),
    }


def _reason(kernels: list[KernelInfo]) -> str:
    return next(info.reason for info in kernels if info.reason is not None)


if __name__ == "__main__":
    main()
