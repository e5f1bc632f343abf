"""CUDA kernels of every family under compute-sanitizer, on shapes that reach every tail.

    kernelmint race-check [--family NAME]... [--tool racecheck]... [--where EXPR]

The variable KERNELS selects kernels of flash_forward, too (tools/selection.py).

Runs NVIDIA's four checkers (memcheck, racecheck, initcheck, synccheck) over each kernel on small,
awkward shapes, and exits with 1 where one of them reports an error. It needs a GPU and
compute-sanitizer, which comes with the CUDA toolkit. Minutes: racecheck slows a kernel a thousand
times.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click
import torch
from torch import Tensor

import runtime
from codegen.manifest import Family
from runtime import KernelInfo, manifest
from runtime.operators import DTYPES

from .selection import FAMILY, select

CHECKERS = ("memcheck", "racecheck", "initcheck", "synccheck")


@dataclass(frozen=True)
class Case:
    """One call.

    `extents` are those of a family's symbols that its kernels leave open. Tensors are normally
    distributed, but for the integers given in `values`, by argument; `options` are passed on.
    `without` names checkers that are wrong about it.
    """

    extents: Mapping[str, int]
    values: Mapping[str, Sequence[int]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()


def _flash_forward(Sq: int, Sk: int, H: int, Hk: int, without: tuple[str, ...] = ()) -> Case:
    extents = {"B": 1, "Sq": Sq, "Sk": Sk, "H": H, "Hk": Hk}
    return Case(extents, options={"return_lse": Sq % 2 == 1}, without=without)


def _hstu_bsa(H: int, *lengths: int) -> Case:
    offsets = [sum(lengths[:end]) for end in range(len(lengths) + 1)]
    return Case({"N": offsets[-1], "H": H, "E": len(offsets)}, values={"x_offsets": offsets})


# Of sequences: one row; tails of blocks and tiles; several blocks and tiles; none. Of heads: more
# than a GPU has multiprocessors, so that persistent blocks of threads take several tiles each;
# racecheck does not know there that a warp's reads precede its first lane's arrival at an mbarrier,
# since ptxas makes no instruction of the __syncwarp() between them.
CASES = {
    FAMILY: (
        _flash_forward(1, 1, 2, 2),
        _flash_forward(7, 100, 4, 1),
        _flash_forward(130, 65, 2, 1),
        _flash_forward(257, 321, 2, 2),
        _flash_forward(66, 70, 400, 200, without=("racecheck",)),
    ),
    "block_sparse": tuple(
        Case({"B": B, "T": T, "H": H}) for B, T, H in ((1, 1, 1), (2, 33, 2), (1, 130, 4))
    ),
    "hstu_bsa": (_hstu_bsa(1, 1), _hstu_bsa(2, 33, 0, 1, 64), _hstu_bsa(4, 130)),
}
_ANY_EXTENTS = (1, 7, 130)  # of every open symbol of a family that has no cases


def cases(family: str) -> tuple[Case, ...]:
    """The calls that a family's kernels are checked with."""
    if family in CASES:
        return CASES[family]
    spec = manifest.family(family)
    open_symbols = set(spec.symbols) - _compiled_in(spec).keys()
    return tuple(Case(dict.fromkeys(open_symbols, extent)) for extent in _ANY_EXTENTS)


def inputs(info: KernelInfo, case: Case, device: str) -> list[Tensor]:
    """The input tensors of a call, contiguous, in the order of the family's arguments.

    Raises:
        ValueError: an argument of integers for which the case has no values.
    """
    spec = manifest.family(info.family)
    compiled_in = {
        symbol: info.parameters[parameter] for symbol, parameter in _compiled_in(spec).items()
    }
    extents = {**case.extents, **compiled_in}
    generator = torch.Generator().manual_seed(0)
    tensors = []
    for argument in spec.inputs:
        name, dtype = argument.name, argument.dtype
        shape = [extents[symbol] for symbol in argument.dims]
        kind = DTYPES.get(info.parameters.get(dtype, dtype))
        if name in case.values:
            values = torch.tensor(case.values[name])
        elif kind is not None and kind.is_floating_point:
            values = torch.randn(shape, generator=generator).to(kind)
        else:
            raise ValueError(
                f"{info.family}: got no values for {name}, which is {dtype}: expected them in "
                "CASES of tools/race_check.py"
            )
        # Copied from the host, so that initcheck sees what is initialised and what is not.
        tensors.append(values.to(device))
    return tensors


def _compiled_in(spec: Family) -> dict[str, str]:
    """The symbols that a parameter fixes, by the family's `requires`: {D: d_head}."""
    parameters = {parameter.name for parameter in spec.parameters}
    rules = (re.fullmatch(r"(\w+) == (\w+)", rule.that) for rule in spec.requires)
    return {rule[1]: rule[2] for rule in rules if rule and rule[2] in parameters}


def chosen(families: Sequence[str], where: str | None) -> list[KernelInfo]:
    """The built CUDA kernels of these families, or of all.

    Raises:
        ValueError, KeyError: a family is not known, or `where` is no expression over its kernels.
    """
    kernels: list[KernelInfo] = []
    for family in families or runtime.families():
        if family == FAMILY:
            kernels += select(where=where).kernels
        else:
            kernels += [info for info in runtime.kernels(family, where=where) if info.built]
    return [info for info in kernels if info.is_cuda]


def run_kernels(kernels: Sequence[KernelInfo], checkers: Sequence[str] = CHECKERS) -> None:
    """Launches every kernel that can run here on each case that one of the checkers is right about,
    and prints its key."""
    for info in kernels:
        if not info.available:
            continue
        kernel = runtime.kernel(info.key)
        for case in cases(info.family):
            if not set(checkers) <= set(case.without):
                kernel(*inputs(info, case, "cuda"), **case.options)
        torch.cuda.synchronize()
        print(info.key, flush=True)


@click.command()
@click.option("--tool", "tools", multiple=True, type=click.Choice(CHECKERS), default=CHECKERS)
@click.option("--family", "families", multiple=True, help="Only kernels of this family.")
@click.option("--where", help="Only kernels for which this expression holds.")
@click.option("--bare", is_flag=True, help="Run the kernels without a checker.")
def main(tools: tuple[str, ...], families: tuple[str, ...], where: str | None, bare: bool) -> None:
    """Run the checkers over every CUDA kernel of this build."""
    try:
        kernels = chosen(families, where)
    except (ValueError, KeyError) as error:
        raise click.UsageError(str(error.args[0])) from None
    runnable = {info.key for info in kernels if info.available}
    if not runnable:
        reason = kernels[0].reason if kernels else "none is in this build"
        raise click.ClickException(f"no CUDA kernel can run here: {reason}")
    if bare:
        run_kernels(kernels, tools)
        return
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        raise click.ClickException(
            "compute-sanitizer is not on PATH; it is in the CUDA toolkit's bin folder"
        )
    failed = []
    for tool in tools:
        command = [sanitizer, "--tool", tool, "--error-exitcode", "99"]
        command += ["--kernel-name", "kernel_substring=kernelmint"]
        command += [sys.executable, "-m", f"{__package__}.race_check", "--bare", f"--tool={tool}"]
        command += [f"--family={family}" for family in families]
        command += [f"--where={where}"] if where else []
        done = subprocess.run(
            command,
            # One allocation a tensor: what lies beside one is not another's memory.
            env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        ran = len(runnable & set(done.stdout.splitlines()))
        clean = done.returncode == 0 and ran == len(runnable)
        verdict = "clean" if clean else "FAILED"
        click.echo(f"{tool:10} {verdict}: {ran} of {len(runnable)} kernels")
        if not clean:
            failed.append(tool)
            click.echo(done.stdout[-4000:])
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
