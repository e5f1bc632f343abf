"""<target>.tuned.yaml: the rows that are written, and whether two tunings agree."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from codegen.core.problems import SpecError
from codegen.ptxas.files import write_text
from codegen.spec import schema
from codegen.spec.model import Shape
from codegen.spec.source import MAX_BYTES, Document
from codegen.tree.writer import locked

from .elimination import Result
from .errors import TuningError

_HEAD = "# Written by `kernelmint tune {family} --target {target}`: docs/tuning.md\n"
_ROW: dict[str, Any] = {"default_flow_style": True, "sort_keys": False, "width": math.inf}


def row(
    device: str, shape: Shape, result: Result, codes: Mapping[str, str], toolchain: str
) -> dict[str, Any]:
    """Makes a row of the file."""
    members = {
        **heading(device, shape),
        "take": result.winner,
        "milliseconds": _milliseconds(result.seconds),
        "sizes": dict(shape.sizes),
    }
    if result.runner_up is not None and result.runner_up_seconds is not None:
        members["runner_up"] = result.runner_up
        members["runner_up_milliseconds"] = _milliseconds(result.runner_up_seconds)
    return {**members, "tie": result.tie, "toolchain": toolchain, "code": codes[result.winner]}


def heading(device: str, shape: Shape) -> dict[str, Any]:
    """Returns the members that say which calls a row stands for."""
    return {
        "device": device,
        "parameters": dict(shape.parameters),
        **({} if shape.when is None else {"when": shape.when}),
        "range": {size.text: [size.least, size.most] for size in shape.ranges},
    }


def _milliseconds(seconds: float) -> float:
    return float(f"{1e3 * seconds:.4g}")


def read(path: Path) -> list[dict[str, Any]]:
    """Reads the rows of a file; an absent file has no rows. Raises SpecError for another file."""
    if not path.exists():
        return []
    document = Document(path)
    schema.validate(document, schema.TunedFile)
    if document.problems:
        raise SpecError(document.problems)
    return list(yaml.safe_load(path.read_text(encoding="utf-8"))["tuned"])


def write(
    path: Path,
    family: str,
    target: str,
    rows: Sequence[Mapping[str, Any]],
    unmeasured: Sequence[Mapping[str, Any]] = (),
) -> int:
    """Writes the rows, and keeps rows of other devices and other parameters, and rows whose heading
    `unmeasured` names; returns the number of kept rows. Another tuning may write to the file at the
    same time."""
    with locked(path.parent):
        measured = {_kind(row) for row in rows}
        spared = {_place(heading) for heading in unmeasured}
        kept = [row for row in read(path) if _kind(row) not in measured or _place(row) in spared]
        lines = ["- " + yaml.safe_dump(dict(row), **_ROW) for row in (*kept, *rows)]
        text = "tuned:\n" + "".join(lines) if lines else "tuned: []\n"
        if len(text) > MAX_BYTES:
            raise TuningError(
                f"{path}: with {len(kept)} rows that are there and {len(rows)} new ones it would "
                f"have {len(text):,} bytes, and codegen reads {MAX_BYTES:,}: write the new ones to "
                "another file (--out), and leave some out"
            )
        write_text(path, _HEAD.format(family=family, target=target) + text)
        return len(kept)


def _kind(row: Mapping[str, Any]) -> tuple[object, ...]:
    return row["device"], *sorted(row["parameters"].items())


def _place(row: Mapping[str, Any]) -> tuple[object, ...]:
    return *_kind(row), row.get("when"), *((name, *ends) for name, ends in row["range"].items())


def _shown(row: Mapping[str, Any]) -> str:
    when = f" {row['when']}" if "when" in row else ""
    return f"{dict(row['parameters'])}{when} {dict(row['range'])}"


def disagreements(
    first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]
) -> tuple[int, list[str]]:
    """Returns the number of rows that both tunings have, and the rows in which they take different
    kernels although neither calls it a tie."""
    others = {_place(row): row for row in second}
    both = [(row, others[_place(row)]) for row in first if _place(row) in others]
    differing = [
        f"{_shown(one)}: {one['take']} against {other['take']}"
        for one, other in both
        if one["take"] != other["take"] and not one["tie"] and not other["tie"]
    ]
    return len(both), differing


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("files", nargs=2, type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--least", default=0.99, show_default=True, help="The share of rows that must agree.")
def main(files: tuple[Path, Path], least: float) -> None:
    """Prints in how many rows two tunings agree, or call it a tie."""
    try:
        count, differing = disagreements(*map(read, files))
    except SpecError as error:
        raise click.ClickException(str(error)) from None
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
