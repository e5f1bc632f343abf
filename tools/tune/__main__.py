"""The command `kernelmint tune`: finds the fastest kernels of a family on this machine's devices,
and writes the rows by which they are chosen."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console, JustifyMethod

import runtime
from codegen import completion, options
from codegen.core.problems import SpecError, UsageError
from codegen.core.ptxas_rows import ReportError
from codegen.core.words import counted
from codegen.ptxas.files import write_text
from runtime import packs

from ..cluster.errors import ClusterError
from ..families import named
from ..listing import Line, print_rest, print_rows
from ..output_file import OutputFile
from ..problem import NoProblemError
from . import rows, t4
from .errors import TuningError
from .tuner import Options, Ranking, Tuner

_FASTEST = 3  # kernels of a shape that are printed
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("family", shell_complete=completion.families)
@click.option(
    "--target",
    required=True,
    metavar="TARGET",
    shell_complete=completion.targets,
    help="The target whose kernels are tuned: cpu, sm90a.",
)
@options.set_name("The set to tune (default: tune, else default).")
@options.where("configurations")
@click.option(
    "--shapes",
    type=_FILE,
    metavar="FILE",
    help="The shapes to measure (default: TARGET.shapes.yaml).",
)
@click.option(
    "--device", metavar="NAME", help="The devices' name, if there are several kinds: NVIDIA H200."
)
@click.option(
    "--ray", metavar="ADDRESS", help="Build and measure on a Ray cluster: HOST:PORT, or auto."
)
@click.option(
    "--budget", type=options.Duration("m"), help="Time for the whole tuning: 90s, 1h, or minutes."
)
@click.option(
    "--seconds",
    type=options.Duration("s"),
    default=0.3,
    show_default=True,
    help="Time for each kernel in each pass, if its rounds take less.",
)
@click.option(
    "--patience",
    type=options.Duration("s", least=0.1),
    default=60.0,
    show_default=True,
    help="Time after which a kernel hangs; the reference has ten times as long.",
)
@click.option("--fresh/--resume", help="Forget earlier measurements (default: go on from there).")
@click.option("--json", "json_file", type=OutputFile(), help="Write all results as T4 JSON.")
@click.option("--all", "everything", is_flag=True, help="Rank all kernels, not the fastest three.")
@click.option(
    "--out", type=OutputFile(), help="The rows' file (default: TARGET.tuned.yaml in the spec)."
)
def main(
    family: str,
    target: str,
    budget: float | None,
    json_file: Path | None,
    everything: bool,
    out: Path | None,
    **asked: Any,
) -> None:
    """Finds the fastest kernels of FAMILY for this machine's devices.

    FAMILY is a family's name, installed or in kernel_specs here, or the folder of its spec. The
    measurements are kept in the cache of kernels that are built on demand, so that a second run
    goes on if the first one ended, and times only kernels whose machine code is new.

    \b
    Examples:
      kernelmint tune my_family --target sm90a --budget 1h
    """
    # The journal has all results: an interrupt ends the process at once, as a kill does, before the
    # workers, which are interrupted too, could be taken for kernels that crash.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        family, specs = named(family)
        plan = Options(family=family, target=target, specs=specs, budget=budget, **asked)
        tuner = Tuner(plan, lambda line: click.echo(line, err=True))
        path = out or tuner.out
        owner = packs.owner(family)
        if owner is not None and path.is_relative_to(owner.folder):
            raise click.UsageError(
                f"{path} belongs to the installed {owner}, whose rows were read when it was built: "
                "name another file with --out, and put it beside the spec that it is built from"
            )
        rows.read(path)  # checked before hours are spent, not after
        if not os.access(path.parent, os.W_OK):
            raise click.UsageError(f"{path.parent} cannot be written: name another file with --out")
        new_rows = tuner.run()
        if json_file is not None:
            write_text(json_file, json.dumps(t4.document(tuner.outcomes()), indent=1) + "\n")
        if not new_rows:
            raise click.ClickException("nothing was measured")
        kept = rows.write(path, family, target, new_rows, tuner.unmeasured)
    except (SpecError, TuningError, ClusterError, NoProblemError, runtime.BuildError) as error:
        raise click.ClickException(str(error)) from None
    except (UsageError, runtime.InvalidArgument) as error:
        raise click.UsageError(str(error)) from None
    except (OSError, ReportError) as error:
        raise click.ClickException(
            f"{error}; all results are in the journal: the same command goes on from there"
        ) from None
    console = Console(highlight=False)
    for ranking in tuner.rankings():
        _print_ranking(ranking, console, everything)
    beside = f", beside {kept} that were there" if kept else ""
    click.echo(
        f"{counted(len(new_rows), 'row')} in {path}{beside}; the journal is {tuner.journal.path}"
    )
    if out is None and specs is None and owner is not None:
        click.echo(f"They count from the next build of pack {owner.name} on.")


def _print_ranking(ranking: Ranking, console: Console, everything: bool) -> None:
    """Prints the kernels of a shape, the chosen one first: times, and rates in shares of its rate
    and in bytes of the arguments."""
    named: dict[str, object] = {**ranking.shape.call}
    for size in ranking.shape.ranges:
        if size.least != size.most:
            measured = f"{named[size.text]} for " if size.text in named else ""
            named[size.text] = f"{measured}{size.least} to {size.most}"
    title = ", ".join(f"{name} {value}" for name, value in named.items())
    result = ranking.result
    rows: list[Line] = []
    for key, seconds in ranking.kernels[: None if everything else _FASTEST]:
        rate = "" if ranking.bytes_moved is None else f"{ranking.bytes_moved / seconds / 1e9:,.2f}"
        tie = "a tie" if result.tie and key == result.runner_up else ""
        remark = "taken" if key == result.winner else tie
        rows.append(
            (key, [f"{1e3 * seconds:.4g}", f"{result.seconds / seconds:.0%}", rate, remark])
        )
    columns: list[tuple[str, JustifyMethod]] = [
        ("ms", "right"), ("rate", "right"), ("GB/s", "right"), ("", "left")
    ]  # fmt: skip
    print_rows(console, title, columns, rows)
    print_rest(console, len(ranking.kernels) - len(rows), "--all shows them")


if __name__ == "__main__":
    sys.exit(main())
