"""The main job in one screen: every kernel of this build that can run here, called by key and
checked.

    kernelmint demo [--all]

Draws random inputs and runs each kernel. Those of flash_forward are shown with their error against
the fp64 oracle (the greatest, and the root of the mean square) beside the error that PyTorch's own
attention makes on the same inputs, those of other families with how many elements of their results
are further from the family's reference than roundings explain (`kernelmint sanity-check`); the
worst first. Exits with 1 if a kernel mismatches, or if the root mean square error of one of
flash_forward is more than 1.5 times PyTorch's: the greatest error of so few roundings is one
element's luck.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import click
import torch
from rich.console import Console
from rich.progress import track
from torch.nn.functional import scaled_dot_product_attention

import runtime
from codegen.core.words import counted
from runtime import KernelInfo, manifest, packs

from .listing import Line, most_rows, print_rest, print_rows
from .problem import Case, cases_of, of_case

CASE = Case({"B": 2, "Sq": 500, "Sk": 500, "H": 8, "Hk": 2})
MOST = 1.5  # times PyTorch's error
COMPARED = "flash_forward"  # with PyTorch
NEXT = """\
next: source .venv/bin/activate
      kernelmint list                the kernels of this build; --help has the other commands
      kernelmint new scale_add       a family of your own: README.md goes on from there"""


@dataclass(frozen=True)
class Checked:
    """A kernel's row, and its badness: above 1 is wrong."""

    badness: float
    row: Line


def pytorch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Calls PyTorch's attention on [B, S, H, D] tensors of equal lengths."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True).transpose(1, 2)


def root_mean_square(values: torch.Tensor) -> torch.Tensor:
    """Returns the root of the mean square of all elements."""
    return values.square().mean().sqrt()


def beside_pytorch(info: KernelInfo, device: torch.device) -> Checked:
    """Runs a kernel of flash_forward, and PyTorch's attention, on one input."""
    problem = of_case(info, CASE, device)
    q, k, v = problem.tensors.values()
    (want,), (out,) = problem.expected, problem.outputs()
    kernel = runtime.kernel(info.key)
    kernel(q, k, v, out=out)
    _, milliseconds = kernel.timed(q, k, v, out=out)
    theirs = pytorch(q, k, v, info.parameters["causal"])
    ours, theirs = ((result.double() - want).abs() for result in (out, theirs))
    ratio = (ours.norm() / theirs.norm()).item()
    errors = [f(e) for e in (ours, theirs) for f in (torch.max, root_mean_square)]
    cells = [f"{e.item():.2e}" for e in errors]
    row = info.key, [f"{milliseconds:.2f}", *cells, f"{ratio:.2f}"]
    return Checked(ratio / MOST if ratio == ratio else float("inf"), row)


def beside_reference(info: KernelInfo, device: torch.device) -> Checked:
    """Runs a kernel on its family's cases; its time is the last case's."""
    kernel, differences, milliseconds = runtime.kernel(info.key), [], 0.0
    for case in cases_of(info):
        problem = of_case(info, case, device)
        differences += problem.check(kernel)
        _, milliseconds = kernel.timed(**problem.arguments(problem.outputs()))
    most = max((d.max_abs for d in differences), default=float("nan"))
    beyond, compared = sum(d.beyond for d in differences), sum(d.compared for d in differences)
    right = bool(differences) and all(d.passed for d in differences)
    row = info.key, [f"{milliseconds:.2f}", f"{most:.2e}", f"{beyond:,} of {compared:,}"]
    return Checked(0.0 if right else float("inf"), row)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--all", "everything", is_flag=True, help="Print all kernels, also on a terminal.")
def main(everything: bool) -> None:
    """Calls every kernel of this build that can run here by key, and checks it.

    \b
    Examples:
      kernelmint demo
      kernelmint demo --all
    """
    sys.exit(demonstrate(everything))


def demonstrate(everything: bool) -> int:
    """Runs the demonstration; returns the exit status."""
    start = time.perf_counter()
    console = Console(highlight=False, soft_wrap=True)
    families = [name for name in packs.families() if manifest.family(name).reference is not None]
    kernels = [info for name in families for info in runtime.kernels(name)]
    runnable = [info for info in kernels if info.available]
    if not runnable:
        console.print("no kernel can run here; `kernelmint info` says why")
        return 1
    if left := sorted({*packs.families()} - {*families}):
        console.print(f"not called, since they name no reference: {', '.join(left)}")
    by_family = {name: [info for info in runnable if info.family == name] for name in families}
    console.print(
        f"{len(runnable)} of {counted(len(kernels), 'kernel')} can run here:\n  "
        + ", ".join(f"{len(infos)} of {name}" for name, infos in by_family.items() if infos)
    )
    compared: list[Checked] = []
    checked: list[Checked] = []
    for info in track(runnable, "calling", console=Console(stderr=True), transient=True):
        device = torch.device("cuda" if info.is_cuda else "cpu")
        if info.family == COMPARED:
            compared.append(beside_pytorch(info, device))
        else:
            checked.append(beside_reference(info, device))
    if compared:
        _print(
            console,
            f"{COMPARED}: q [2, 500, 8, d], k and v [2, 500, 2, d], random",
            ("ms", "max error", "rms error", "PyTorch's max", "rms", "ratio of rms"),
            compared,
            everything,
        )
    if checked:
        headings = ("ms", "max error", "beyond rounding")
        _print(console, "beside the reference", headings, checked, everything)
    wrong = [result.row[0] for result in (*compared, *checked) if result.badness > 1]
    for key in wrong:
        console.print(f"WRONG: {key}")
    if not wrong:
        lines = [f"{len(checked)} agree with their references"] if checked else []
        if compared:
            worst = MOST * max(result.badness for result in compared)
            lines.append(
                f"{COMPARED}'s {len(compared)} are within {MOST} times PyTorch's rms error "
                f"(worst: {worst:.2f})"
            )
        console.print("every kernel is right:", *lines, sep="\n  ")
    console.print(f"called and checked in {time.perf_counter() - start:.0f} s", NEXT, sep="\n")
    return bool(wrong)


def _print(
    console: Console, title: str, headings: Sequence[str], rows: list[Checked], everything: bool
) -> None:
    rows = sorted(rows, key=lambda result: -result.badness)
    shown = [result.row for result in rows[: most_rows(console, everything)]]
    console.print(f"\n{title}")
    print_rows(console, "key", [(heading, "right") for heading in headings], shown)
    print_rest(console, len(rows) - len(shown), "--all shows them")


if __name__ == "__main__":
    main()
