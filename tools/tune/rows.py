"""<target>.tuned.yaml: the rows that are written, and whether two tunings agree."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from codegen.spec.model import Shape

from .race import Result

_HEAD = "# Written by `kernelmint tune {family} --target {target}`: docs/tuning.md\n"


def row(
    device: str, shape: Shape, result: Result, codes: Mapping[str, str], toolchain: str
) -> dict[str, Any]:
    """A row of the file."""
    made: dict[str, Any] = {
        "device": device,
        "parameters": dict(shape.parameters),
        "range": {size.text: [size.least, size.most] for size in shape.ranges},
        "take": result.winner,
        "milliseconds": _milliseconds(result.seconds),
        "sizes": dict(shape.sizes),
    }
    if result.runner_up is not None and result.runner_up_seconds is not None:
        made["runner_up"] = result.runner_up
        made["runner_up_milliseconds"] = _milliseconds(result.runner_up_seconds)
    return {**made, "tie": result.tie, "toolchain": toolchain, "code": codes[result.winner]}


def _milliseconds(seconds: float) -> float:
    return float(f"{1e3 * seconds:.4g}")


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file; none where there is no file."""
    if not path.exists():
        return []
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    return list(data["tuned"])


def write(path: Path, family: str, target: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes the rows, and keeps those of other devices and other parameters that are there."""
    measured = {_kind(row) for row in rows}
    kept = [row for row in read(path) if _kind(row) not in measured]
    text = yaml.safe_dump(
        {"tuned": [*kept, *map(dict, rows)]}, default_flow_style=None, sort_keys=False, width=140
    )
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(_HEAD.format(family=family, target=target) + text)
    partial.replace(path)


def _kind(row: Mapping[str, Any]) -> tuple[object, ...]:
    return row["device"], *sorted(row["parameters"].items())


def _place(row: Mapping[str, Any]) -> tuple[object, ...]:
    return *_kind(row), *((name, *ends) for name, ends in row["range"].items())


def disagreements(
    first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]
) -> tuple[int, list[str]]:
    """How many rows both tunings have, and those in which they take different kernels although
    neither calls it a tie."""
    others = {_place(row): row for row in second}
    both = [(row, others[_place(row)]) for row in first if _place(row) in others]
    differing = [
        f"{dict(one['parameters'])} {dict(one['range'])}: {one['take']} against {other['take']}"
        for one, other in both
        if one["take"] != other["take"] and not one["tie"] and not other["tie"]
    ]
    return len(both), differing


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("files", nargs=2, type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--least", default=0.99, show_default=True, help="The share of rows that must agree.")
def main(files: tuple[Path, Path], least: float) -> None:
    """Say in how many rows two tunings agree, or call it a tie."""
    count, differing = disagreements(*map(read, files))
    if count == 0:
        raise click.ClickException("the files have no row in common")
    for line in differing:
        click.echo(line)
    share = 1 - len(differing) / count
    click.echo(f"{count - len(differing)} of {count} rows agree ({share:.1%})")
    if share < least:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
