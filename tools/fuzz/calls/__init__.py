"""Calls of the runtime: wrong ones end in its own errors, right ones in the oracles' values.

    python -m tools.fuzz calls --count 100000 --seed 1 --kind wrong
    python -m tools.fuzz calls --only 4711 --seed 1 --kind wrong      # one case again

Each case follows from the seed and its number alone. Cases run in a child process, so that one that
kills it, or does not end, is a failure with a number.
"""

from __future__ import annotations

import sys

import click

from . import right, runner, wrong

_KINDS = {"wrong": wrong.case, "right": right.case}


@click.command()
@click.option("--count", type=click.IntRange(min=1), default=1000, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--kind", type=click.Choice([*_KINDS, "both"]), default="both", show_default=True)
@click.option("--only", type=click.IntRange(min=0), help="Run the case of this number, in process.")
def main(count: int, seed: int, kind: str, only: int | None) -> None:
    """Wrong and right calls of every public function and of every CPU family's kernels."""
    failed = False
    for name in _KINDS if kind == "both" else (kind,):
        if only is not None:
            click.echo(_KINDS[name](seed, only) or "passed")
            continue
        found = runner.run(_KINDS[name], seed, count)
        for failure in found.failures[:20]:
            click.echo(f"{name} call {failure.number}: {failure.what}")
        kinds = ", ".join(f"{n} {what}" for what, n in sorted(found.counts.items()))
        click.echo(f"{count} {name} calls, seed {seed}: {len(found.failures)} failed; {kinds}")
        failed |= bool(found.failures)
    sys.exit(failed)
