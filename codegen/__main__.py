"""The commands regenerate, check, list, explain, schema, new and init of `kernelmint`; also `python
-m codegen …`."""

from __future__ import annotations

import functools
import json
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

try:
    import click
    from rich.console import Console

    from codegen import completion, installed, options, pipeline, scaffold
    from codegen.core import manifest, staleness
    from codegen.core.manifest import Selection
    from codegen.core.packs import Fault
    from codegen.core.problems import SpecError, UsageError
    from codegen.core.words import counted, display_path
    from codegen.space import explain as explanation
    from codegen.space.excluded import products
    from codegen.space.expand import expand
    from codegen.spec import schema, short_form
    from codegen.spec.load import load
    from codegen.spec.model import Family
    from codegen.tree import writer
except ModuleNotFoundError as error:
    if str(error.name).startswith("codegen"):
        raise
    print(
        f"kernelmint: {sys.executable} lacks the package {error.name}: run `make build`, or "
        "`pip install -e .`, and name that environment's Python",
        file=sys.stderr,
    )
    sys.exit(2)  # not 1: the tree may be fresh

STALE = 1
BAD_INPUT = 2
_EXIT_STATUS = {"excluded": 1, "unknown": BAD_INPUT}  # the status of `explain` for an unknown key

_SPECS = Path("kernel_specs")
_OUT = Path("generated")
_SHOWN = 40  # lines of a diff


def _reports_bad_input(command: Callable[..., Any]) -> Callable[..., Any]:
    """Reports bad input, one problem on a line, and exits with status 2."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except SpecError as error:
            for problem in error.problems:
                click.echo(problem, err=True)
            count = len(error.problems)
            click.echo(f"{counted(count, 'problem')}", err=True)
        except UsageError as error:
            click.echo(f"error: {error}", err=True)
        sys.exit(BAD_INPUT)

    return run


_specs_option = click.option(
    "--specs", multiple=True, type=click.Path(path_type=Path), metavar="DIR",
    help="A folder of families; may be repeated. Default: kernel_specs.",
)  # fmt: skip
_out_option = click.option(
    "--out", default=_OUT, show_default=True, type=click.Path(path_type=Path), metavar="DIR",
    help="The generated tree.",
)  # fmt: skip
_set_option = options.set_name("The set to take of each target. Default: default.")
_where_option = options.where("configurations")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Generates C++ instantiations of kernels and their dispatch table from specs in YAML."""


@main.command()
@_specs_option
@_out_option
@_set_option
@_where_option
@_reports_bad_input
def regenerate(specs: tuple[Path, ...], out: Path, set_name: str | None, where: str | None) -> None:
    """Writes the generated tree; a file that has not changed keeps its time.

    \b
    Examples:
      kernelmint regenerate
      kernelmint regenerate --set tune --out /tmp/tune
    """
    tree = pipeline.generate(specs or (_SPECS,), out, Selection(set_name or "default", where))
    result = writer.write(out, tree.files)
    kernels = sum(len(t.configurations) for space in tree.spaces for t in space.targets)
    click.echo(
        f"{display_path(out)}: {counted(kernels, 'kernel')}; "
        f"{counted(len(result.written), 'file')} written, "
        f"{len(result.unchanged)} unchanged, {len(result.removed)} removed"
    )


@main.command()
@_specs_option
@_out_option
@_set_option
@_where_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object, without the diff.")
@click.option("--all", "whole", is_flag=True, help="The whole diff, however long.")
@_reports_bad_input
def check(
    specs: tuple[Path, ...],
    out: Path,
    set_name: str | None,
    where: str | None,
    as_json: bool,
    whole: bool,
) -> None:
    """Says whether the generated tree is the one that its specs give; else exits with status 1, a
    diff and the command that fixes it.

    Without options, compares the tree with the specs and the set that its manifest names.

    \b
    Examples:
      kernelmint check
      kernelmint check --out /tmp/tune --json
    """
    recorded = staleness.read_manifest(out)
    selection = recorded.get("selection", {})
    chosen = Selection(
        set_name or selection.get("set") or "default",
        where if where is not None else selection.get("where"),
    )
    folders = specs or tuple(Path(folder) for folder in staleness.shown_spec_dirs(out, recorded))
    tree = pipeline.generate(folders or (_SPECS,), out, chosen)
    difference = writer.compare(out, tree.files)
    if not difference:
        if as_json:
            click.echo(json.dumps({"stale": False, "differing": [], "orphans": [], "commands": []}))
        else:
            click.echo(f"{display_path(out)} is up to date")
        return
    orphans = [display_path(out / path) for path in difference.orphans + difference.strays]
    fresh = json.loads(tree.files[staleness.MANIFEST])
    commands = [staleness.fixing_command(out, fresh)]
    if strays := [display_path(out / path) for path in difference.strays]:
        commands.insert(0, shlex.join(["rm", *strays]))
    if as_json:
        differing = [display_path(out / path) for path in difference.diffs]
        report = {"stale": True, "differing": differing, "orphans": orphans, "commands": commands}
        click.echo(json.dumps(report, indent=1))
        sys.exit(STALE)
    lines = [line for diff in difference.diffs.values() for line in diff.splitlines()]
    lines += [f"orphan: {orphan}" for orphan in orphans]
    shown = lines if whole else lines[:_SHOWN]
    click.echo("\n".join(shown))
    if len(lines) > len(shown):
        click.echo(f"and {counted(len(lines) - len(shown), 'more line')}: --all shows them")
    click.echo(
        f"{display_path(out)} is stale: {counted(len(difference.diffs), 'file')} to change, "
        f"{counted(len(orphans), 'orphan')}; fix it with:",
        err=True,
    )
    for command in commands:
        click.echo(f"  {command}", err=True)
    sys.exit(STALE)


@main.command("list")
@_specs_option
@_set_option
@_where_option
@click.option("--json", "as_json", is_flag=True, help="One JSON array, with all values.")
@click.option(
    "--short", is_flag=True, help="Short forms in place of keys, for targets that have them."
)
@click.option(
    "--predicted",
    is_flag=True,
    help="Kernels with predictions of what ptxas will say: registers, bytes of shared memory.",
)
@click.option(
    "--excluded", is_flag=True,
    help="How much each constraint leaves out of the set's products, in place of the keys; --where "
    "selects the targets that hold such a configuration.",
)  # fmt: skip
@_reports_bad_input
def list_(
    specs: tuple[Path, ...],
    set_name: str | None,
    where: str | None,
    as_json: bool,
    short: bool,
    predicted: bool,
    excluded: bool,
) -> None:
    """Lists the keys of the kernels that regenerate would write; writes nothing.

    Without --specs and a folder kernel_specs, lists the kernels of the installed packs.

    \b
    Examples:
      kernelmint list --where "target == 'cpu' and dtype == bf16"
      kernelmint list --set tune --json
      kernelmint list --set tune --excluded --where "target == 'sm90a'"
    """
    if excluded:
        _list_excluded(specs or (_SPECS,), Selection(set_name or "default", where), as_json)
        return
    faults: list[Fault] = []
    if _of_packs(specs):
        if set_name is not None:
            raise UsageError(
                "--set: installed packs hold the sets that they were built of; name a project's "
                "specs with --specs DIR"
            )
        entries, faults = installed.entries(_SPECS, where)
    else:
        entries = _entries(specs or (_SPECS,), Selection(set_name or "default", where))
    if predicted:
        entries = [entry for entry in entries if "predicted" in entry]
    if as_json:
        click.echo(json.dumps(entries, indent=1))
    else:
        names = [entry.get("short", entry["key"]) if short else entry["key"] for entry in entries]
        for line in _with_predictions(entries, names) if predicted else names:
            click.echo(line)
        counts = Counter(f"{entry['family']}.{entry['target']}" for entry in entries)
        line = ", ".join(f"{count} {name}" for name, count in counts.items())
        Console(stderr=True).print(line, style="dim", highlight=False, soft_wrap=True)
    for reason in dict.fromkeys(fault.reason for fault in faults):
        click.echo(f"not listed: {reason}", err=True)
    if faults:
        sys.exit(BAD_INPUT)


def _with_predictions(entries: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """Returns a line of headings and a line for each kernel, with its predictions."""
    columns = list(dict.fromkeys(column for entry in entries for column in entry["predicted"]))
    rows = [["kernel", *columns]]
    for name, entry in zip(names, entries, strict=True):
        rows.append([name, *(str(entry["predicted"].get(column, "")) for column in columns)])
    width = max(len(name) for name, *_ in rows)
    return [
        f"{name:<{width}}" + "".join(f"  {cell:>12}" for cell in cells) for name, *cells in rows
    ]


def _list_excluded(specs: tuple[Path, ...], selection: Selection, as_json: bool) -> None:
    """Prints what each rule leaves out of the selected targets' products."""
    spaces = [target for space in expand(load(specs), selection) for target in space.targets]
    found = [products(space, selection.set_name) for space in spaces]
    if as_json:
        data = [
            {
                "family": of.target.family,
                "target": of.target.name,
                "set": selection.set_name,
                "combinations": of.combinations,
                "left": of.left,
                "rules": [
                    {
                        "place": str(one.rule.location),
                        "that": one.rule.that.text,
                        "because": one.rule.because,
                        "left_out": one.count,
                        "alone": one.alone,
                    }
                    for one in of.excluded
                ],
            }
            for of in found
        ]
        click.echo(json.dumps(data, indent=1))
        return
    for of in found:
        place = f"{of.target.family}.{of.target.name}, {selection.set_name}"
        if not of.combinations:
            click.echo(f"{place}: no product: its configurations are written out")
            continue
        click.echo(f"{place}: {of.left:,} of {of.combinations:,} combinations")
        click.echo(f"{'left out':>14}{'alone':>12}  rule")
        for one in of.excluded:
            if one.count != 0:
                count, alone = ("?" if n is None else f"{n:,}" for n in (one.count, one.alone))
                rule = f"{one.rule.location}: {one.rule.that.text}: {one.rule.because}"
                click.echo(f"{count:>14}{alone:>12}  {rule}")
        if idle := sum(one.count == 0 for one in of.excluded):
            click.echo(f"{0:>14}{0:>12}  {counted(idle, 'other rule')}")


def _of_packs(specs: tuple[Path, ...]) -> bool:
    """Returns whether a command concerns the installed packs: no specs are named, and the current
    folder has none."""
    return not specs and not _SPECS.exists()


def _entries(specs: tuple[Path, ...], selection: Selection) -> list[dict[str, Any]]:
    """Returns the configurations of specs, as --json prints them."""
    targets = [target for space in expand(load(specs), selection) for target in space.targets]
    return [
        {
            "key": c.key,
            **({"short": short_form.write(t.target, c.parameters)} if t.target.short else {}),
            "family": t.target.family,
            "target": t.target.name,
            "parameters": c.parameters,
            "derived": c.derived,
            **({"predicted": c.predicted} if c.predicted else {}),
        }
        for t in targets
        for c in t.configurations
    ]


@main.command()
@click.argument("key", shell_complete=completion.keys)
@_specs_option
@_out_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@_reports_bad_input
def explain(key: str, specs: tuple[Path, ...], out: Path, as_json: bool) -> None:
    """Says whether KEY is built, is excluded and why (exit status 1), or how to add it.

    Without --specs, explains a family that is not in kernel_specs by its installed pack's specs.

    \b
    Examples:
      kernelmint explain flash_forward.cpu.f32-d64-r64-c128
    """
    families = None if _of_packs(specs) else load(specs or (_SPECS,))
    try:
        if families is None or (not specs and _of_another_family(key, families)):
            explanation_ = installed.explain(key, _SPECS)
        else:
            explanation_ = explanation.explain(key, families, _built(out))
    except explanation.UnknownKeyError as error:
        if not as_json:
            raise
        explanation_ = error.explanation
    click.echo(json.dumps(explanation_.as_json, indent=1) if as_json else explanation_.text)
    if explanation_.status in _EXIT_STATUS:
        sys.exit(_EXIT_STATUS[explanation_.status])


def _built(out: Path) -> dict[str, str]:
    """Returns the file of each key of a generated tree; empty if its manifest cannot be read."""
    try:
        return manifest.read(out / staleness.MANIFEST).files
    except (OSError, ValueError):
        return {}


def _of_another_family(key: str, families: Sequence[Family]) -> bool:
    """Returns whether a key or short form belongs to an installed pack and to none of these
    families."""
    if short_form.is_short(key):
        return not any(target.short for family in families for target in family.targets)
    name = key.partition(".")[0]
    return name not in [family.name for family in families] and name in installed.families()


@main.command()
@_specs_option
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for the archives' files, as KERNELMINT_SOURCES on a machine without a network.",
)
@_reports_bad_input
def sources(specs: tuple[Path, ...], to: Path | None) -> None:
    """Fetches the archives that `build:` of the specs pins, and prints their paths.

    \b
    Examples:
      kernelmint sources --to sources
    """
    from codegen.sources import archives  # slow to import

    builds = [
        build
        for family in load(specs or (_SPECS,))
        for build in (family.build, *(target.build for target in family.targets))
    ]
    entries = [place.entry for build in builds for place in build.paths]
    pins = {(e["archive"], e["sha256"]): None for e in entries if "archive" in e}
    try:
        for origin, sha256 in pins:
            pin = (origin, sha256)
            path = archives.folder(*pin) if to is None else archives.lay(*pin, to)
            click.echo(f"{origin}  {display_path(path)}")
    except archives.ArchiveError as error:
        raise UsageError(str(error)) from None
    if not pins:
        click.echo("these specs name no archives", err=True)


@main.command()
@click.argument("family")
@click.option(
    "--specs",
    default=_SPECS,
    show_default=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The folder that takes the family's folder.",
)
@_reports_bad_input
def new(family: str, specs: Path) -> None:
    """Starts a family: z = alpha * x + y for the CPU and for CUDA, with its test.

    \b
    Examples:
      kernelmint new scale_add
    """
    for path in scaffold.create(family, specs):
        click.echo(f"wrote {display_path(path)}")
    folder = display_path(specs / family)
    option = "" if specs == _SPECS else f" --specs {display_path(specs)}"
    click.echo(f"next: kernelmint regenerate{option}, build, and pytest {folder}")


@main.command()
@click.argument("name")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The folder to make. Default: NAME.",
)
@click.option("--family", metavar="FAMILY", help="Its first family. Default: NAME_scale_add.")
@click.option("--bare", is_flag=True, help="No first family: for kernels that are moved.")
@_reports_bad_input
def init(name: str, folder: Path | None, family: str | None, bare: bool) -> None:
    """Starts a project: a pack of kernels, its Python package and its tests.

    Also writes the generated tree of its first family, so that the commands printed at the end work
    at once.

    \b
    Examples:
      kernelmint init my_kernels
      kernelmint init my_kernels --bare
      kernelmint init my_kernels --folder ~/src/my_kernels --family my_norm
    """
    root = folder or Path(name)
    if bare and family is not None:
        raise UsageError(f"--bare makes no family: leave out --family {family}")
    for path in scaffold.create_project(name, root, family, bare=bare):
        click.echo(f"wrote {display_path(path)}")
    if bare:
        commands = [f"kernelmint new {name}_FAMILY", "kernelmint regenerate"]
    else:
        specs, commands = (root / "kernel_specs",), []
        tree = pipeline.generate(specs, root / "generated", Selection("default", None))
        written = writer.write(root / "generated", tree.files).written
        click.echo(f"wrote {display_path(root / 'generated')}: {counted(len(written), 'file')}")
    click.echo("next:")
    for command in [f"cd {display_path(root)}", *commands, *scaffold.installing(), "pytest"]:
        click.echo(f"  {command}")


@main.command("schema")
def schema_() -> None:
    """Prints the JSON Schema of the YAML files, for editors.

    \b
    Examples:
      kernelmint schema > spec.schema.json
    """
    click.echo(json.dumps(schema.json_schema(), indent=2))


if __name__ == "__main__":
    main(prog_name="python -m codegen")
