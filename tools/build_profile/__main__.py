"""The command `kernelmint build-profile`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from mako.template import Template

from codegen.core.ptxas_rows import ReportError
from codegen.core.words import counted

from ..output_file import OutputFile, write
from . import traces
from .traces import KINDS, Frame, Node, Profile

_TEMPLATE = Path(__file__).with_name("page.html.mako")
_LEAST = 0.0005  # The least share of the whole that the flame graph draws as a box
_LONGEST = 110  # characters of a name in a table


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--top", default=10, show_default=True, type=click.IntRange(min=1), metavar="N",
    help="The most rows of each table.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object, in place of tables.")
@click.option("--html", type=OutputFile(), help="Write a page: a flame graph, and the tables.")
def main(paths: tuple[Path, ...], top: int, as_json: bool, html: Path | None) -> None:
    """Sorts units, headers, templates, functions and compilers' phases by a build's seconds.

    A template's row holds all of its instantiations.

    PATHS are time traces, or folders of them, which `kernelmint build --profile DIR`, nvcc's
    --fdevice-time-trace or Clang's -ftime-trace wrote. Seconds are those of the clock.

    \b
    Examples:
      kernelmint build-profile traces --html profile.html
      kernelmint build-profile build/editable --top 30
    """
    try:
        files = traces.files(paths)
        profile = traces.profile(files)
    except ReportError as error:
        raise click.ClickException(str(error)) from None
    data = _data(profile, top)
    if html is not None:
        write(html, _page(profile, data))
    if as_json:
        click.echo(json.dumps(data, indent=1))
        return
    click.echo(f"{data['seconds']:.2f} s in {counted(len(files), 'time trace')}")
    for kind, ranking in data["ranked"].items():
        click.echo(f"\n{'total s':>9}{'self s':>9}{'count':>8}  {kind}")
        for row in ranking["rows"]:
            name = row["name"]
            name = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
            click.echo(f"{row['total']:9.3f}{row['self']:9.3f}{row['count']:8}  {name}")
        if ranking["left_out"]:
            click.echo(f"{'':28}and {ranking['left_out']} more, {ranking['left_out_self']:.3f} s")


def _data(profile: Profile, top: int) -> dict[str, Any]:
    """Returns the tables, as --json prints them."""
    ranked = {}
    for kind in KINDS:
        costs = profile.ranked(kind)
        ranked[kind] = {
            "self": sum(cost.self for _, cost in costs),
            "rows": [{"name": name, **vars(cost)} for name, cost in costs[:top]],
            "left_out": len(costs[top:]),
            "left_out_self": sum(cost.self for _, cost in costs[top:]),
        }
    return {"seconds": profile.root.total, "ranked": ranked}


def _page(profile: Profile, data: dict[str, Any]) -> str:
    # Inside <script>, only `</` and `<!--` could end or confuse it; JSON may escape any character.
    tree = _tree(profile, Frame("unit", "all"), profile.root)
    text = json.dumps(tree, separators=(",", ":")).replace("<", "\\u003c")
    template = Template(filename=str(_TEMPLATE), default_filters=["h"], strict_undefined=True)
    units = counted(len(profile.ranked("unit")), "unit")
    return str(template.render(tree=text, counted_units=units, **data))


def _tree(profile: Profile, frame: Frame, node: Node) -> list[Any]:
    """Returns a node for the page, without boxes that would be too narrow to see."""
    least = _LEAST * profile.root.total
    shown = [item for item in node.children.items() if item[1].total >= least]
    shown.sort(key=lambda item: -item[1].total)
    children = [_tree(profile, inner, child) for inner, child in shown]
    return [frame.kind, profile.name(frame), round(node.total, 6), node.count, children]


if __name__ == "__main__":
    main(prog_name="python -m tools.build_profile")
