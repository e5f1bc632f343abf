"""Measures packed sequences, windows and decoding beside what else computes them, in one run."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click
import torch
from kernelmint.tools.bench import results
from kernelmint.tools.bench.measure import measure
from kernelmint.tools.listing import print_table
from kernelmint.tools.output_file import OutputFile, write
from kernelmint.tools.selection import for_device
from rich.console import Console

from codegen import options
from runtime import KernelInfo

from . import contenders
from .contenders import OURS, Operands
from .problems import Problem, decoding, packed

_SECONDS = 0.1


def command(family: str) -> click.Command:
    """The command `bench` of flash_prefill, which has packed sequences, or of flash_decode."""
    cached = family == "flash_decode"

    @click.command(family, context_settings={"help_option_names": ["-h", "--help"]})
    @click.option(
        "--target",
        metavar="TARGET",
        help="The kernels of this target (default: all a GPU can run).",
    )
    @options.where("kernels")
    @options.set_name("The kernels of this set, built if no pack has them.")
    @click.option(
        "--d-head",
        "d_heads",
        type=int,
        multiple=True,
        default=(128,),
        show_default=True,
        help="Columns of a head; may be repeated.",
    )
    @click.option(
        "--size",
        "only",
        metavar="SIZE",
        help="Only sizes that this regular expression matches, as columns show.",
    )
    @click.option("--front", is_flag=True, help="The function alone, and what it chooses.")
    @click.option(
        "--beside",
        type=click.Choice(list(contenders.OTHERS)),
        multiple=True,
        help="Only these contenders, repeatable (default: all that are there).",
    )
    @click.option(
        "--seconds",
        type=options.Duration("s"),
        default=_SECONDS,
        show_default=True,
        help="Time for each figure.",
    )
    @click.option("--json", "json_file", type=OutputFile(), help="Write the figures as JSON.")
    def bench(
        target: str | None,
        where: str | None,
        set_name: str | None,
        d_heads: tuple[int, ...],
        only: str | None,
        front: bool,
        beside: tuple[str, ...],
        seconds: float,
        json_file: Path | None,
    ) -> None:
        """Measure the median rates of the functions of FlashAttention's names, of each kernel that
        suits, and of other implementations, which take turns on the same memory.

        On a GPU the second-level cache is overwritten before each call and CUDA events give the
        time. Each contender has --seconds a figure.

        \b
        Examples:
          kernelmint bench flash_prefill --target sm90a --d-head 128
        """
        device, kernels = for_device(family, target, where, set_name)
        made = decoding if cached else packed
        problems = [
            problem for d_head in d_heads for problem in made(d_head, device.type == "cuda")
        ]
        problems = [p for p in problems if only is None or re.search(only, f"{p.group} {p.size}")]
        if not problems:
            raise click.BadParameter(f"no size matches {only!r}", param_hint="--size")
        rows: list[results.Row] = []
        console = Console(width=None if sys.stdout.isatty() else 250)
        for group in dict.fromkeys(problem.group for problem in problems):
            in_group = [problem for problem in problems if problem.group == group]
            found: list[results.Row] = []
            for problem in in_group:
                suiting = [] if front or cached else [i for i in kernels if _suits(i, problem)]
                found += _measured(problem, suiting, beside, device, seconds)
                torch.cuda.empty_cache()
            print_table(console, results.table(found, in_group[0].unit))
            rows += found
            if json_file is not None:
                write(json_file, results.json_text(rows, device))

    return bench


def _suits(info: KernelInfo, problem: Problem) -> bool:
    """Whether a kernel is made for a problem: not for a greater head dimension."""
    return (info.parameters["dtype"], info.parameters["d_head"]) == (problem.dtype, problem.d_head)


def _measured(
    problem: Problem,
    kernels: list[KernelInfo],
    beside: tuple[str, ...],
    device: torch.device,
    seconds: float,
) -> list[results.Row]:
    operands = Operands(problem, device)
    calls = {OURS: contenders.ours(operands)}
    calls |= {info.key: contenders.kernel_call(info, operands) for info in kernels}
    keys = {name: name for name in calls}
    for name in beside or contenders.OTHERS:
        if (call := contenders.contender(name, operands)) is not None:
            calls[name] = call
    rows: list[results.Row] = results.rows_of(problem, measure(calls, device, seconds), keys)
    return rows


bench = command("flash_prefill")
