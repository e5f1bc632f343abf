"""`make matrix`: runs rows of the matrix, and keeps their results.

    make matrix                                  # every row that is not done at this commit
    make matrix ROWS="python torch:2.15"         # some
    python -m tools.matrix python --again        # also those that are done
    python -m tools.matrix --list

A row whose Python, PyTorch or compiler cannot be had is kept with the reason. The exit status is 1
if a row failed.
"""

from __future__ import annotations

import datetime
import platform
import sys
import time
from pathlib import Path

import click

from . import results, rows
from .results import Outcome, Row
from .work import AbsentError, FailedError, Work


@click.command("matrix", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, metavar="[ROW|KIND]...")
@click.option("--again", is_flag=True, help="Run rows that are done at this commit, too.")
@click.option("--list", "lists", is_flag=True, help="Show the rows and what is kept of them.")
@click.option(
    "--csv", "file", type=click.Path(path_type=Path), default=results.CSV, metavar="FILE",
    help="Where results are kept.  [default: docs/matrix.csv]",
)  # fmt: skip
@click.option(
    "--page", type=click.Path(path_type=Path, exists=True), default=results.PAGE, metavar="FILE.md",
    help="The page whose table is written.  [default: docs/tested.md]",
)  # fmt: skip
def main(names: tuple[str, ...], again: bool, lists: bool, file: Path, page: Path) -> None:
    """Tries this checkout with the Pythons, PyTorchs, compilers and systems of the matrix."""
    try:
        chosen = rows.chosen(names)
        kept = results.read(file)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if lists:
        for name in chosen:
            row = kept.get(name)
            click.echo(f"{name}: {f'{row.result} at {row.commit}' if row else 'not tried'}")
        return
    failed = 0
    for n, name in enumerate(chosen, 1):
        click.echo(f"[{n}/{len(chosen)}] {name}: ", nl=False)
        if not again and results.is_done(kept.get(name)):
            click.echo(f"done at {kept[name].commit}")
            continue
        row = run(name)
        failed += row.result == "failed"
        click.echo(f"{row.result}, {row.seconds} s: {row.detail}")
        kept[name] = row
        ordered = [kept[name] for name in rows.NAMES if name in kept]
        results.write(file, page, ordered)
    sys.exit(failed > 0)


def run(name: str) -> Row:
    """Runs a row's check, whatever comes of it."""
    work, begun, commit = Work(name), time.monotonic(), results.commit()
    try:
        outcome = rows.check(name, work)
    except AbsentError as error:
        outcome = Outcome("absent", str(error))
    except FailedError as error:
        outcome = Outcome("failed", str(error))
    finally:
        work.clean()
    system = platform.freedesktop_os_release()["PRETTY_NAME"]
    return Row(
        name, *outcome, round(time.monotonic() - begun), f"{platform.machine()}, {system}",
        commit, datetime.date.today().isoformat(),
    )  # fmt: skip


if __name__ == "__main__":
    main()
