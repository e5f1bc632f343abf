"""What compiling a target's kernels costs, out of a build: seconds for a file and for each of its
kernels, and memory.

    kernelmint costs [BUILD] [--write]

reads what the build kept beside its ptxas logs, prints it by target, and writes it into the specs,
<family>/costs.yaml. `kernelmint regenerate` then cuts files by it, and builds bound their compilers
by it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import click
import yaml

from codegen import manifest
from codegen.manifest import Manifest
from codegen.spec.problems import display_path
from codegen.staleness import MANIFEST

_SUFFIX = ".cost.json"
_LEAST_SECONDS = 0.01


class Cost(NamedTuple):
    """What compiling a target takes, as costs.yaml has it."""

    file_seconds: float
    kernel_seconds: float
    mib: int

    def __str__(self) -> str:
        members = ", ".join(f"{name}: {value}" for name, value in self._asdict().items())
        return f"{{{members}}}"


class Measured(NamedTuple):
    """What one object took."""

    kernels: int
    seconds: float
    mib: int


def measured(build: Path, made: Manifest) -> dict[tuple[str, str], list[Measured]]:
    """What the objects of a build took, by family and target."""
    files: dict[tuple[str, str], int] = defaultdict(int)  # kernels by (file, target)
    owners: dict[tuple[str, str], tuple[str, str]] = {}
    for family, target, kernel in made.kernels:
        files[kernel.file, target.name] += 1
        owners[kernel.file, target.name] = family.name, target.name
    found: dict[tuple[str, str], list[Measured]] = defaultdict(list)
    for (file, target_name), kernels in files.items():
        for path in sorted(build.rglob(f"{Path(file).name}.{target_name}{_SUFFIX}")):
            if path.as_posix().endswith(f"/{file}.{target_name}{_SUFFIX}"):
                cost = json.loads(path.read_text(encoding="utf-8"))
                taken = Measured(kernels, cost["seconds"], cost["mib"])
                found[owners[file, target_name]].append(taken)
    return dict(found)


def fitted(objects: Sequence[Measured]) -> Cost:
    """The line through seconds over kernels, by least squares; through 0 where all objects have as
    many kernels, or the line makes no sense."""
    kernels, seconds = fmean(o.kernels for o in objects), fmean(o.seconds for o in objects)
    variance = fmean((o.kernels - kernels) ** 2 for o in objects)
    covariance = fmean((o.kernels - kernels) * (o.seconds - seconds) for o in objects)
    slope = covariance / variance if variance else 0.0
    if not 0 < slope <= seconds / kernels:
        slope = seconds / kernels
    slope = max(slope, _LEAST_SECONDS)
    return Cost(
        _rounded(max(seconds - slope * kernels, 0.0)),
        _rounded(slope),
        max(o.mib for o in objects),
    )


def _rounded(value: float) -> float:
    """To two figures: costs differ from run to run."""
    return float(f"{value:.2g}")


def write(path: Path, costs: dict[str, Cost]) -> None:
    """Puts the costs into a costs.yaml; what it says of other targets stays."""
    known = {}
    if path.exists():
        written = yaml.safe_load(path.read_text(encoding="utf-8"))
        known = {name: Cost(**entry) for name, entry in written["costs"].items()}
    lines = [f"  {name}: {cost}\n" for name, cost in sorted({**known, **costs}.items())]
    path.write_text(
        "# What compiling was measured to take: kernelmint costs --write\ncosts:\n"
        + "".join(lines),
        encoding="utf-8",
    )


@click.command()
@click.argument(
    "build", type=click.Path(path_type=Path, exists=True, file_okay=False), default="build"
)
@click.option(
    "--generated",
    type=click.Path(path_type=Path),
    default="generated",
    show_default=True,
    help="The tree that was built.",
)
@click.option("--write", "writes", is_flag=True, help="Write <family>/costs.yaml into the specs.")
def main(build: Path, generated: Path, writes: bool) -> None:
    """What compiling the kernels of a build took, by family and target."""
    try:
        made = manifest.load(generated / MANIFEST)
    except (OSError, ValueError) as error:
        raise click.ClickException(f"cannot read {generated / MANIFEST}: {error}") from None
    found = measured(build, made)
    if not found:
        raise click.ClickException(
            f"{display_path(build)} holds no {_SUFFIX} of a file in {display_path(generated)}: "
            "build first; what ccache replays is not measured"
        )
    by_family: dict[str, dict[str, Cost]] = defaultdict(dict)
    for (family, target), objects in found.items():
        cost = by_family[family][target] = fitted(objects)
        total = sum(o.seconds for o in objects)
        click.echo(f"{family}.{target}: {cost} ({len(objects)} files, {total:,.0f} s)")
    if writes:
        for entry in made.families:
            if entry.name in by_family:
                folder = _spec_folder(generated, made, entry.folder)
                write(folder / "costs.yaml", by_family[entry.name])
                click.echo(f"written: {display_path(folder / 'costs.yaml')}")


def _spec_folder(generated: Path, made: Manifest, folder: str) -> Path:
    roots = [(generated / specs).resolve() for specs in made.spec_dirs]
    places = [root / folder for root in roots]
    return next(place for place in places if place.is_dir())


if __name__ == "__main__":
    main()
