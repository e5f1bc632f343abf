"""Measures a family's kernels in one run: by the command `bench` that the family brings, beside
what else computes the same, or else beside each other."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console

import runtime
from codegen import completion, options
from runtime import KernelInfo, manifest, packs

from ..families import hook, named
from ..listing import print_table
from ..output_file import OutputFile, write
from ..problem import Case, cases, compiled_sizes, of_case
from ..selection import for_device, nothing_runs
from . import results
from .measure import measure


class _Families(click.Group):
    """A command for each family; one that is given by its folder is built."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return packs.families()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        family, folder = named(cmd_name)
        found = hook(family, "bench")
        if found is not None:
            assert isinstance(found, click.Command), f"{family}: `bench` is not a command"
            return found
        return _beside_each_other(family, "default" if folder else None)


@click.group(cls=_Families, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Measure a family's kernels in one run, beside what else computes the same.

    \b
    Examples:
      kernelmint bench my_family --json figures.json
      kernelmint bench kernel_specs/my_family --size M=64,N=4096
    """


@dataclass(frozen=True)
class _Moved:
    """A call of one size, by the memory that it must move."""

    group: str
    size: str
    operations: int  # bytes of inputs and outputs

    @property
    def extent(self) -> int:
        """On a plot's axis."""
        return self.operations


def _sizes(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[Case, ...]:
    try:
        parts = [[part.split("=") for part in value.split(",")] for value in values]
        return tuple(Case({name: int(size) for name, size in pairs}) for pairs in parts)
    except ValueError:
        raise click.BadParameter("expected symbols with sizes, such as M=64,N=4096") from None


def _beside_each_other(family: str, default_set: str | None) -> click.Command:
    """The command of a family that brings none."""

    @click.command(family, context_settings={"help_option_names": ["-h", "--help"]})
    @click.option(
        "--target",
        metavar="TARGET",
        shell_complete=completion.targets,
        help="The kernels of this target (default: cpu, or all a GPU can run).",
    )
    @options.where("kernels")
    @options.set_name("The kernels of this set.", default=default_set)
    @click.option(
        "--size",
        "sizes",
        callback=_sizes,
        multiple=True,
        metavar="SIZE",
        help="Such as M=64,N=4096; may be repeated.",
    )
    @click.option(
        "--seconds", type=options.Duration("s"), default=0.3, help="Time for each figure."
    )
    @click.option(
        "--json", "json_file", type=OutputFile(), metavar="FILE", help="Write the figures as JSON."
    )
    def command(
        target: str | None,
        where: str | None,
        set_name: str | None,
        sizes: tuple[Case, ...],
        seconds: float,
        json_file: Path | None,
    ) -> None:
        """Measure the median rates at which kernels read their inputs and write their outputs.

        Those that have the family's parameters in common take turns on the same inputs.
        """
        device, kernels = for_device(family, target, where, set_name)
        rows: list[results.Row] = []
        try:
            for case in sizes or cases(family)[-1:]:
                for group in _alike(family, _suiting(kernels, case)):
                    rows += _measured(group, case, device, seconds)
        except (ValueError, KeyError, runtime.BuildError) as error:
            raise click.UsageError(str(error.args[0])) from None
        if not rows:
            raise nothing_runs()
        console = Console(width=None if sys.stdout.isatty() else 250)
        for group_name in dict.fromkeys(row.problem.group for row in rows):
            of_group = [row for row in rows if row.problem.group == group_name]
            print_table(console, results.table(of_group, "GB/s"))
        if json_file is not None:
            write(json_file, results.json_text(rows, device))

    return command


def _suiting(kernels: Sequence[KernelInfo], case: Case) -> list[KernelInfo]:
    """The kernels that are compiled for no other size. Raises ValueError if none of several is."""
    compiled = [(info, compiled_sizes(info)) for info in kernels]
    found = [info for info, sizes in compiled if {**sizes, **case.sizes} == {**case.sizes, **sizes}]
    if kernels and not found:
        sizes = ", ".join(f"{name}={size}" for name, size in case.sizes.items())
        there = {f"{name}={size}": None for _, own in compiled for name, size in own.items()}
        raise ValueError(f"--size {sizes}: the kernels are compiled for {', '.join(there)}")
    return found


def _alike(family: str, kernels: Sequence[KernelInfo]) -> list[list[KernelInfo]]:
    """Kernels by the values of the family's parameters, which decide what is computed."""
    names = [parameter.name for parameter in manifest.family(family).parameters]
    groups: dict[tuple[Any, ...], list[KernelInfo]] = {}
    for info in kernels:
        groups.setdefault(tuple(info.parameters[name] for name in names), []).append(info)
    return list(groups.values())


def _measured(
    kernels: Sequence[KernelInfo], case: Case, device: torch.device, seconds: float
) -> list[results.Row]:
    made = of_case(kernels[0], case, device)
    moved = [*made.tensors.values(), *made.outputs()]
    shared = {p.name: kernels[0].parameters[p.name] for p in made.family.parameters}
    problem = _Moved(
        ", ".join(f"{name} {value}" for name, value in shared.items()) or made.family.name,
        ", ".join(f"{name} {size}" for name, size in case.sizes.items()),
        sum(tensor.nbytes for tensor in moved),
    )
    arguments = {**made.tensors, **made.scalars}
    calls = {info.key: partial(runtime.kernel(info.key), **arguments) for info in kernels}
    return results.rows_of(problem, measure(calls, device, seconds), {key: key for key in calls})


if __name__ == "__main__":
    sys.exit(main())
