"""Where the bytes of wheels, packs and libraries went.

    kernelmint sizes [PLACE]... [--by slice|family|kernel|kind|file]... [--check] [--json]

PLACE is a wheel, a folder or a library, of Kernelmint or not; without one, the installed packs. The
figures are bytes unpacked, the worst first; a kernel's are what its machine code takes in the
library, for each architecture. --check holds them to [tool.kernelmint.budget] of pyproject.toml,
which a build of a wheel does, too.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from codegen.build.sizes import (
    BASE,
    DEVICE,
    HEADERS,
    Part,
    SizesError,
    budgets_of,
    over_budget,
    parts_of,
    totals,
)
from codegen.core import packs, slices
from codegen.core.architectures import of_code
from codegen.core.ptxas_rows import ReportError, Row
from codegen.core.words import display_path

from .ptx_report import report
from .ptx_report.binary import reader

_BY = ("slice", "family", "kind", "kernel", "file")


def measured(place: Path) -> list[Part]:
    """Returns the parts of a wheel, a folder or a library, with a part for each kernel and
    architecture. Raises ReportError."""
    try:
        parts = parts_of(place)
    except (OSError, SizesError) as error:
        raise ReportError(str(error)) from None
    rows: dict[str, list[Row]] = defaultdict(list)
    if any(part.kind == DEVICE for part in parts):
        for row in report.named(reader.read(place)):
            rows[row.source or ""].append(row)
    return [each for part in parts for each in _by_kernel(part, rows.get(part.file, ()))]


def _by_kernel(part: Part, rows: Sequence[Row]) -> Iterator[Part]:
    if part.kind != DEVICE or not rows:
        yield part
        return
    sizes: dict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        sizes[row.kernel_config, row.arch or ""] += row.stored_bytes or 0
    for (kernel, arch), size in sizes.items():
        yield replace(part, slice=_slice(part, arch), size=size, kernel=f"{kernel} [{arch}]")
    arch = next(iter(sizes))[1]
    rest = part.size - sum(sizes.values())
    yield replace(part, slice=_slice(part, arch), size=rest, kernel=HEADERS)


def _slice(part: Part, arch: str) -> str:
    """Returns the slice of device code: its file's, or the one that its architecture would be
    in."""
    named = of_code(arch)
    return f"sm{named.capability}" if part.slice == BASE and named is not None else part.slice


def _installed() -> list[Path]:
    usable, faults = packs.installed()
    if faults or not usable:
        reasons = [fault.reason for fault in faults]
        raise ReportError("\n".join(reasons) or "no pack is installed: name a wheel or a folder")
    return [
        folder
        for pack in usable
        for folder in (pack.folder, *(part.folder for part in slices.installed(pack)[0]))
        if folder == pack.folder or pack.folder not in folder.parents
    ]


def _facts(place: Path, parts: Sequence[Part], by: Sequence[str]) -> dict[str, Any]:
    return {
        "place": str(place),
        "bytes": place.stat().st_size if place.is_file() else None,
        "unpacked": sum(part.size for part in parts),
        "by": {name: dict(totals(parts, name)) for name in by},
    }


def _lines(facts: dict[str, Any], top: int) -> Iterator[str]:
    packed = "" if facts["bytes"] is None else f"{facts['bytes']:,} bytes, unpacked "
    whole = facts["unpacked"]
    yield f"{display_path(Path(facts['place']))}: {packed}{whole:,} bytes"
    for by, sizes in facts["by"].items():
        if not sizes:
            continue
        yield f"  by {by}"
        for name, size in [*sizes.items()][:top]:
            yield f"  {size:>14,}  {size / whole if whole else 0:6.1%}  {name}"
        if more := [*sizes.values()][top:]:
            yield f"  {sum(more):>14,}  {sum(more) / whole:6.1%}  {len(more)} others"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("places", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--by", multiple=True, type=click.Choice(_BY), help="What to add up by; repeated. Default: all "
    "but file.",
)  # fmt: skip
@click.option("--top", default=10, show_default=True, help="Rows of a table.")
@click.option("--check", is_flag=True, help="Exit with 1 if something is over its budget.")
@click.option(
    "--budgets", type=click.Path(path_type=Path), default=Path("pyproject.toml"),
    metavar="FILE", help="A pyproject.toml with [tool.kernelmint.budget]. Default: the one here.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON array, all rows.")
def main(
    places: tuple[Path, ...],
    by: tuple[str, ...],
    top: int,
    check: bool,
    budgets: Path,
    as_json: bool,
) -> None:
    """Shows where the bytes of PLACES went: wheels, folders or libraries.

    \b
    Examples:
      kernelmint sizes dist/*.whl
      kernelmint sizes --by kernel --top 30
      kernelmint sizes dist/*.whl --check
    """
    try:
        limits = budgets_of(budgets)
        by_place = {place: measured(place) for place in places or _installed()}
    except (ReportError, SizesError) as error:
        raise click.ClickException(str(error)) from None
    facts = [_facts(place, parts, by or _BY[:-1]) for place, parts in by_place.items()]
    if as_json:
        click.echo(json.dumps(facts, indent=1))
    else:
        click.echo("\n".join(line for each in facts for line in _lines(each, top)))
    if check:
        if not limits.limits:
            raise click.UsageError(f"--check: {budgets} has no [tool.kernelmint.budget]")
        over = [
            line for place, parts in by_place.items() for line in over_budget(place, parts, limits)
        ]
        for line in over:
            click.echo(f"kernelmint sizes: {line}", err=True)
        if over:
            raise click.exceptions.Exit(1)


if __name__ == "__main__":
    main()
