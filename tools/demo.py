"""The main job in one screen: every attention kernel of this build, called by key and checked.

    kernelmint demo [--all]

Draws random inputs, runs each kernel that this machine can run, and prints its error against the
family's fp64 oracle (the greatest, and the root of the mean square) beside the error that PyTorch's
own attention makes on the same inputs, the worst first. Exits with 1 if a kernel's root mean square
error is more than 1.5 times PyTorch's: the greatest error of so few roundings is one element's
luck.
"""

from __future__ import annotations

import sys

import click
import torch
from rich.console import Console
from rich.progress import track
from torch.nn.functional import scaled_dot_product_attention

import runtime
from codegen.words import counted

from .listing import Line, most_rows, print_rest, print_rows
from .problem import Case, of_case

CASE = Case({"B": 2, "Sq": 500, "Sk": 500, "H": 8, "Hk": 2})
MOST = 1.5  # times PyTorch's error


def pytorch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """PyTorch's attention on [B, S, H, D] tensors of equal lengths."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True).transpose(1, 2)


def root_mean_square(values: torch.Tensor) -> torch.Tensor:
    """The root of the mean square of all elements."""
    return values.square().mean().sqrt()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--all", "everything", is_flag=True, help="All kernels, on a terminal too.")
def main(everything: bool) -> None:
    """Every attention kernel of this build, called by key and checked."""
    sys.exit(demonstrate(everything))


def demonstrate(everything: bool) -> int:
    """Run the demonstration; return the exit status."""
    console = Console(highlight=False, soft_wrap=True)
    kernels = runtime.kernels(family="flash_forward")
    runnable = [info for info in kernels if info.available]
    if not runnable:
        console.print("no flash_forward kernel can run here; `kernelmint info` says why")
        return 1
    targets = sorted({info.target for info in runnable})
    console.print(
        f"{len(runnable)} of {counted(len(kernels), 'kernel')} can run here "
        f"({', '.join(targets)}); q [2, 500, 8, d], k and v [2, 500, 2, d], random"
    )
    headings = ("ms", "max error", "rms error", "PyTorch's max", "rms", "ratio of rms")
    rows: list[tuple[float, Line]] = []
    for info in track(runnable, "calling", console=Console(stderr=True), transient=True):
        made = of_case(info, CASE, torch.device("cuda" if info.is_cuda else "cpu"))
        q, k, v = made.tensors.values()
        (want,), (out,) = made.expected, made.outputs()
        kernel = runtime.kernel(info.key)
        kernel(q, k, v, out=out)
        _, milliseconds = kernel.timed(q, k, v, out=out)
        theirs = pytorch(q, k, v, info.parameters["causal"])
        ours, theirs = ((result.double() - want).abs() for result in (out, theirs))
        ratio = (ours.norm() / theirs.norm()).item()
        errors = [f(e) for e in (ours, theirs) for f in (torch.max, root_mean_square)]
        cells = [f"{e.item():.2e}" for e in errors]
        row = info.key, [f"{milliseconds:.2f}", *cells, f"{ratio:.2f}"]
        rows.append((ratio if ratio == ratio else float("inf"), row))
    rows.sort(key=lambda row: -row[0])
    shown = [row for _, row in rows[: most_rows(console, everything)]]
    print_rows(console, "key", [(heading, "right") for heading in headings], shown)
    print_rest(console, len(rows) - len(shown), "--all shows them")
    worst, _ = rows[0]
    verdict = "every kernel is" if worst <= MOST else "NOT every kernel is"
    console.print(f"{verdict} within {MOST} times PyTorch's rms error (worst: {worst:.2f})")
    return 0 if worst <= MOST else 1


if __name__ == "__main__":
    main()
