"""Builds on demand that are killed at random moments, on one cache.

Each case edits a header, starts to build its kernel in a process, and kills that with SIGKILL up to
four times, alone or with its compilers. Then the kernel must be built, and compute what the header
says now.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click
import torch

import runtime
from codegen import scaffold

FAMILY = "fuzzed_add"
_MOST_SECONDS = 2.5  # until a process is killed; a build takes about as long
_ALPHA = "splat(args_.alpha)"


def _in_child(work: Callable[[], bool]) -> int:
    """Starts a process, in a group of its own, that does some work and exits with 0 if it is good;
    its id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.setsid()
        status = 0 if work() else 1
    except BaseException as error:  # a child must not return into its parent's loop
        click.echo(f"{type(error).__name__}: {error}", err=True)
    os._exit(status)


def _builds(folder: Path) -> bool:
    runtime.load(folder)
    runtime.kernel(f"{FAMILY}.cpu.f32-n4096")
    return True


def _computes(folder: Path, factor: int) -> bool:
    runtime.load(folder)
    x, y = torch.randn(2, 3, 1000)
    z = torch.full_like(x, float("nan"))
    runtime.kernel(f"{FAMILY}.cpu.f32-n4096")(x, y, alpha=0.5, out=z)
    return torch.allclose(z, factor * 0.5 * x + y, rtol=1e-5, atol=1e-4)


def attempt(folder: Path, header: str, seed: int, number: int) -> int:
    """One case, in a folder with the family whose CPU header this is; how many were killed.

    Raises AssertionError where the kernel is not built, or computes something else.
    """
    chosen = random.Random(f"{seed}/{number}")
    factor = chosen.randrange(2, 1000)
    (folder / "cpu.h").write_text(header.replace(_ALPHA, f"splat({factor} * args_.alpha)"))
    killed = 0
    for _ in range(chosen.randint(1, 4)):
        child = _in_child(lambda: _builds(folder))
        time.sleep(chosen.uniform(0, _MOST_SECONDS))
        if os.waitpid(child, os.WNOHANG)[0]:
            continue  # it was faster
        if chosen.random() < 0.5:
            os.kill(child, signal.SIGKILL)  # its compilers go on
        else:
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        killed += 1
    child = _in_child(lambda: _computes(folder, factor))
    _, status = os.waitpid(child, 0)
    assert status == 0, f"--seed {seed}, case {number}: the kernel is not what its header says"
    return killed


@click.command()
@click.option("--count", default=10, show_default=True, help="Cases.")
@click.option("--seed", default=0, show_default=True)
@click.option("--first", default=0, help="The first case's number.")
def main(count: int, seed: int, first: int) -> None:
    """Kill builds on demand at random moments."""
    killed = 0
    with tempfile.TemporaryDirectory() as place:
        os.environ["KERNELMINT_CACHE_DIR"] = str(Path(place, "cache"))
        specs = Path(place, "kernel_specs")
        scaffold.create(FAMILY, specs)
        folder = specs / FAMILY
        header = (folder / "cpu.h").read_text()
        for number in range(first, first + count):
            killed += attempt(folder, header, seed, number)
        left = len(list(Path(place, "cache/1/tmp").iterdir()))
    click.echo(f"{count} cases, {killed} processes killed, every kernel right; {left} folders left")


if __name__ == "__main__":
    main()
