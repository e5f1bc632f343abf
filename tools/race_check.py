"""CUDA kernels of every family under compute-sanitizer, on shapes that reach every tail.

    kernelmint race-check [--family NAME]... [--kernel KEY] [--tool racecheck]... [--where EXPR]

The variable KERNELS also selects kernels (tools/selection.py). A kernel's calls come from
tools/problem.py; a family's tools.py may list its own.

Runs NVIDIA's four checkers (memcheck, racecheck, initcheck, synccheck) over each kernel on small,
awkward shapes, and exits with 1 if one of them reports an error. It needs a GPU and
compute-sanitizer, which comes with the CUDA toolkit. Minutes: racecheck slows a kernel a thousand
times.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

import click
import torch

import runtime
from codegen import completion, options
from runtime import KernelInfo

from .families import all_named, know
from .problem import cases_of, of_case
from .selection import select

CHECKERS = ("memcheck", "racecheck", "initcheck", "synccheck")


def chosen(families: Sequence[str], where: str | None, key: str | None) -> list[KernelInfo]:
    """Returns the built CUDA kernels of these families, or of all; or the one of a key.

    Raises:
        ValueError, KeyError: an unknown family, or `where` is not an expression over its kernels.
        TargetUnavailable, BuildError: the kernel of the key cannot run here, or does not compile.
    """
    if key is not None:
        know(key)
        info = runtime.kernel(key, build=True).info
        return [info] if info.is_cuda else []
    kernels: list[KernelInfo] = []
    errors = []
    for family in [name for text in families for name in all_named(text)] or runtime.families():
        try:
            kernels += select(family, where).kernels
        except ValueError as error:
            errors.append(str(error))
    if not kernels and errors:
        raise ValueError("; ".join(dict.fromkeys(errors)))
    return [info for info in kernels if info.is_cuda]


def run_kernels(kernels: Sequence[KernelInfo], checkers: Sequence[str] = CHECKERS) -> None:
    """Launches every kernel that can run here on each case that one of the checkers is right about,
    and prints its key."""
    for info in kernels:
        if not info.available:
            continue
        kernel = runtime.kernel(info.key)
        for case in cases_of(info, "RACE_CASES"):
            if not set(checkers) <= set(case.without):
                problem = of_case(info, case, torch.device("cuda"))
                kernel(**problem.tensors, **problem.scalars)
        torch.cuda.synchronize()
        print(info.key, flush=True)


def find_sanitizer() -> str:
    """Returns the command compute-sanitizer. Raises ClickException without it."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        raise click.ClickException(
            "compute-sanitizer is not on PATH; it is in the CUDA toolkit's bin folder"
        )
    return program


def run_under(sanitizer: str, tool: str, only: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs the kernels that this command's options `only` choose, in a process under a checker."""
    command = [sanitizer, "--tool", tool, "--error-exitcode", "99"]
    command += ["--kernel-name", "kernel_substring=kernelmint"]
    command += [sys.executable, "-m", f"{__package__}.race_check", "--bare", f"--tool={tool}"]
    return subprocess.run(
        [*command, *only],
        # One allocation a tensor: the memory beside a tensor is no other tensor's.
        env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


@click.command()
@click.option(
    "--tool",
    "tools",
    multiple=True,
    type=click.Choice(CHECKERS),
    default=CHECKERS,
    help="Only these checkers; may be repeated.",
)
@click.option(
    "--family",
    "families",
    multiple=True,
    metavar="FAMILY",
    shell_complete=completion.families,
    help="Only kernels of this family; may be repeated.",
)
@options.where("kernels")
@click.option("--kernel", metavar="KEY", shell_complete=completion.keys, help="Only this kernel.")
@click.option("--bare", is_flag=True, help="Run the kernels without a checker.")
def main(
    tools: tuple[str, ...],
    families: tuple[str, ...],
    where: str | None,
    kernel: str | None,
    bare: bool,
) -> None:
    """Runs the checkers over every CUDA kernel of this build.

    \b
    Examples:
      kernelmint race-check --family my_family --tool racecheck
    """
    try:
        kernels = chosen(families, where, kernel)
    except (ValueError, KeyError, runtime.BuildError, runtime.TargetUnavailable) as error:
        raise click.UsageError(str(error.args[0])) from None
    runnable = {info.key for info in kernels if info.available}
    if not runnable:
        reason = kernels[0].reason if kernels else "this build has no CUDA kernel"
        raise click.ClickException(f"no CUDA kernel can run here: {reason}")
    if bare:
        run_kernels(kernels, tools)
        return
    sanitizer = find_sanitizer()
    failed = []
    for tool in tools:
        only = [f"--family={family}" for family in families]
        only += [f"--where={where}"] if where else []
        only += [f"--kernel={kernel}"] if kernel else []
        done = run_under(sanitizer, tool, only)
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
