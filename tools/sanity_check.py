"""Every kernel of flash_forward in this build against the fp64 oracle, one line each.

    kernelmint sanity-check [--kernel KEY] [--range] [--where EXPR] [--json]

KEY is a key or a short form; without it, the variable KERNELS selects (tools/selection.py). An
element mismatches unless

    |o - oracle| <= unit * (|oracle| + attention(q, k, |v|)),

with unit 2^-8 for bf16, 2^-11 for fp16 and 2^-18 for f32. That is one rounding of the result and
one of each probability to a 16-bit dtype; for f32, the rounding of the two products' sums. The
outputs are NaN before the call. Exits with 1 where a kernel mismatches, and for such a kernel
prints how many elements differ in each row, and in each column of d_head.
"""

from __future__ import annotations

import json
import math
import sys
from shutil import get_terminal_size
from typing import Any

import click
import torch
from torch import Tensor

import runtime
from codegen import completion
from codegen.words import counted
from runtime import KernelInfo

from .comparison import Difference, Tolerance, compare
from .debug.inputs import Shape, make_inputs
from .debug.text import number_lines
from .oracle import oracle
from .selection import FAMILY, select

# Tails in blocks of queries and of keys; counting to 250 * 256 stays within fp16.
SHAPE = Shape(batch=2, seq_len=250, heads=4, kv_heads=2)
UNITS = {"bf16": 2.0**-8, "fp16": 2.0**-11, "f32": 2.0**-18}


def check(info: KernelInfo, *, counting: bool, seed: int) -> tuple[Difference, Tensor]:
    """Runs a kernel; returns its difference from the oracle, and which elements mismatch.

    The mask is [B, Sq, H, D].
    """
    q, k, v = make_inputs(info, SHAPE, counting=counting, seed=seed)
    attention, causal = oracle(FAMILY), info.parameters["causal"]
    want = attention(q, k, v, causal=causal)
    magnitude = attention(q, k, v.abs(), causal=causal)
    out = torch.full_like(q, float("nan"))
    runtime.kernel(info.key)(q, k, v, out=out)
    unit = UNITS[info.parameters["dtype"]]
    bound = unit * (want.abs() + magnitude)
    difference = compare(
        out,
        want,
        name=info.key,
        tolerance=Tolerance(rtol=unit, atol=unit),
        atol_scale=magnitude,
        dims=("b", "t", "h", "d"),
    )
    return difference, ~((out.double() - want).abs() <= bound)


def where_it_differs(mismatched: Tensor) -> str:
    """How many elements mismatch in each row (over d_head) and in each column (over seq)."""
    count = mismatched.double()
    over_d_head, over_seq = count.sum((0, 2, 3)), count.sum((0, 1, 2))
    lines = [f"  over d_head, by row ({over_d_head.numel()}):"]
    lines += [f"    {i:5}: {line}" for i, line in _by_eight(over_d_head)]
    lines += [f"  over seq, by column ({over_seq.numel()}):"]
    lines += [f"    {i:5}: {line}" for i, line in _by_eight(over_seq)]
    return "\n".join(lines)


def _by_eight(counts: Tensor) -> list[tuple[int, str]]:
    """Lines of 8 counts that are not all zero, each with the index of its first."""
    groups = ((i, counts[i : i + 8]) for i in range(0, counts.numel(), 8))
    return [(i, next(number_lines(g, decimals=0))) for i, g in groups if bool(g.any())]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--kernel",
    metavar="KEY",
    shell_complete=completion.keys,
    help="Only this kernel, by key or short form.",
)
@click.option("--where", metavar="EXPR", help="Only kernels for which this expression holds.")
@click.option("-r", "--range", "counting", is_flag=True, help="q counts up, k = -q, v = q.")
@click.option("--seed", default=0, show_default=True, help="Of the normal inputs.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def main(kernel: str | None, where: str | None, counting: bool, seed: int, as_json: bool) -> None:
    """Check every built kernel of flash_forward that can run here against the fp64 oracle."""
    try:
        chosen = select(kernel, where)
    except (ValueError, KeyError, runtime.TargetUnavailable, runtime.BuildError) as error:
        raise click.UsageError(str(error)) from None
    runnable = [info for info in chosen.kernels if info.available]
    if not runnable:
        raise click.ClickException(f"nothing can run here: {chosen.kernels[0].reason}")
    if as_json:
        kernels = [_as_json(check(i, counting=counting, seed=seed)[0]) for i in runnable]
        found = {
            "seed": None if counting else seed,
            "kernels": kernels,
            "not_run": [{"key": i.key, "reason": i.reason} for i in chosen.kernels if i.reason],
        }
        click.echo(json.dumps(found, indent=1))
        sys.exit(not all(kernel["passed"] for kernel in kernels))
    click.echo(
        f"{chosen.description}: {counted(len(runnable), 'kernel')}; "
        f"q [{SHAPE.batch}, {SHAPE.seq_len}, {SHAPE.heads}, d], {SHAPE.kv_heads} key heads, "
        f"{'counting' if counting else f'normal, seed {seed}'}; |o - oracle| <= unit * "
        f"(|oracle| + attention(q, k, |v|)), unit "
        + ", ".join(f"{unit:.1e} for {dtype}" for dtype, unit in UNITS.items())
    )
    width = max(len(info.key) for info in runnable)
    failed = []
    for info in runnable:
        difference, mismatched = check(info, counting=counting, seed=seed)
        verdict = "ok" if difference.passed else "FAILED"
        figures = (
            f"{difference.beyond}/{difference.compared} mismatched "
            f"({difference.beyond / difference.compared:.3%})  max |d| "
            f"{difference.max_abs:.2e}  {verdict}"
        )
        narrow = sys.stdout.isatty() and width + len(figures) > get_terminal_size().columns - 2
        click.echo(f"{info.key}\n  {figures}" if narrow else f"{info.key:{width}}  {figures}")
        if not difference.passed:
            failed.append(info.key)
            click.echo(f"  worst: {difference.worst}")
            click.echo(where_it_differs(mismatched))
    left = len(chosen.kernels) - len(runnable)
    click.echo(
        f"{len(runnable) - len(failed)} of {len(runnable)} right"
        + (f"; {left} built ones cannot run here: {_reason(chosen.kernels)}" if left else "")
    )
    if failed:
        for key in failed:
            click.echo(f"FAILED: {key}", err=True)
        sys.exit(1)


def _as_json(difference: Difference) -> dict[str, Any]:
    """A kernel's difference, for programs; what is not finite is null."""
    largest = difference.max_abs
    return {
        "key": difference.name,
        "passed": difference.passed,
        "mismatched": difference.beyond,
        "compared": difference.compared,
        "max_abs": largest if math.isfinite(largest) else None,
        "worst": None if difference.worst is None else str(difference.worst),
    }


def _reason(kernels: list[KernelInfo]) -> str:
    return next(info.reason for info in kernels if info.reason is not None)


if __name__ == "__main__":
    main()
