"""A set, and a generated tree, of the kernels that programs used.

    KERNELMINT_RECORD=used.yaml python program.py      # notes the keys that it resolves
    kernelmint slim used.yaml [--specs DIR]... [--set NAME] [--out DIR] [--wheel DIR]

Writes the set NAME into each <target>.yaml that has one of the keys, in the place of an earlier one
of that name, and a generated tree that holds just these kernels. With --wheel it builds a wheel of
that tree, and says how big its libraries are beside those of the packs that are installed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import yaml

from codegen import pipeline, scaffold
from codegen.core import packs
from codegen.core.manifest import Selection
from codegen.core.problems import SpecError, UsageError
from codegen.core.ptxas_rows import ReportError
from codegen.core.words import counted, display_path
from codegen.ptxas.files import write_text
from codegen.space import explain
from codegen.space.expand import exclusions
from codegen.spec.load import load
from codegen.spec.model import Family, ParameterValue, Target
from codegen.tree import writer

Values = tuple[ParameterValue, ...]


def read_keys(path: Path) -> list[str]:
    """Returns the keys of a file that KERNELMINT_RECORD wrote. Raises UsageError for another
    file."""
    try:
        keys = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"{display_path(path)}: {error}") from None
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or not keys:
        raise UsageError(f"{display_path(path)}: expected a list of keys, as KERNELMINT_RECORD has")
    return list(dict.fromkeys(keys))


def by_target(
    keys: Sequence[str], families: Sequence[Family]
) -> tuple[dict[Target, list[Values]], list[str]]:
    """Returns the configurations of the keys, and the keys of families that these specs do not
    have."""
    names = {family.name for family in families}
    configurations: dict[Target, list[Values]] = {}
    foreign = [key for key in keys if key.partition(".")[0] not in names]
    for key in (key for key in keys if key not in foreign):
        target, values = explain.parse(key, families)
        if reasons := exclusions(target, values):
            raise UsageError("\n  ".join([f"{key} is excluded:", *reasons]))
        configurations.setdefault(target, []).append(values)
    return configurations, foreign


def with_set(text: str, name: str, configurations: Sequence[str]) -> str:
    """Returns a target's YAML with a set of these configurations, without the set if there are
    none; the rest, comments included, stays. Raises UsageError if its sets are not written in
    lines."""
    root = yaml.compose(text, yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)  # it was loaded before
    nodes = {key.value: value for key, value in root.value}
    lines = text.splitlines(keepends=True)
    if not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    if "sets" not in nodes:  # a group's file has them
        entries = [f"    - {entry}\n" for entry in configurations]
        return "".join([*lines, "sets:\n", f"  {name}:\n", *entries] if entries else lines)
    sets = nodes["sets"]
    if sets.flow_style:
        raise UsageError("its sets are written in braces: write them in lines")

    def last_of(first: int, end: int) -> int:
        """Returns the index after the last of these lines that is neither empty nor a comment."""
        return next(n for n in range(end, first, -1) if re.match(r"\s*[^\s#]", lines[n - 1]))

    names = [key for key, _ in sets.value]
    indent = " " * names[0].start_mark.column
    written = [f"{indent}  - {entry}\n" for entry in configurations]
    if written:
        written.insert(0, f"{indent}{name}:\n")
    ends = [*(key.start_mark.line for key in names[1:]), sets.end_mark.line]
    if sets.end_mark.column:  # the file ends within the last line
        ends[-1] += 1
    ends[-1] = min(ends[-1], len(lines))
    for key, end in zip(names, ends, strict=True):
        if key.value == name:
            begin = key.start_mark.line
            return "".join([*lines[:begin], *written, *lines[last_of(begin, end) :]])
    at = last_of(names[-1].start_mark.line, ends[-1])
    return "".join([*lines[:at], *written, *lines[at:]])


def write_sets(specs: Sequence[Path], texts: Mapping[Path, str]) -> None:
    """Writes these files of the specs, or none of them if they could not be loaded then. Raises
    UsageError."""
    with tempfile.TemporaryDirectory() as folder:
        drafts = {root: Path(folder, str(i), root.resolve().name) for i, root in enumerate(specs)}
        for root, draft in drafts.items():
            shutil.copytree(root, draft, ignore=shutil.ignore_patterns(".*"))
            for path, text in texts.items():
                if path.resolve().is_relative_to(root.resolve()):
                    changed = draft / path.resolve().relative_to(root.resolve())
                    changed.write_text(text, encoding="utf-8")
        try:
            load(list(drafts.values()))
        except SpecError as error:
            problems = "\n".join(map(str, error.problems))
            for root, draft in drafts.items():
                problems = problems.replace(str(draft), display_path(root))
            raise UsageError(f"nothing is written: the specs would not load:\n{problems}") from None
    for path, text in texts.items():
        write_text(path, text)


def _installed_bytes(families: Sequence[str]) -> int:
    """Returns the size of the installed libraries of these families."""
    usable, _ = packs.installed()
    libraries = [pack.library(f) for pack in usable for f in pack.families if f in families]
    return sum(path.stat().st_size for path in libraries if path.is_file())


def _build_wheel(folder: Path, tree: Path) -> tuple[Path, int]:
    """Builds a wheel of the project in the current folder with the kernels of `tree`; returns it
    and the size of its packs' libraries."""
    command = [
        *(sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--wheel-dir", str(folder)),
        *("-C", f"cmake.define.KERNELMINT_GENERATED_DIR={tree.resolve()}"),
        *("-C", f"build-dir={folder.resolve()}/build", *scaffold.pip_options()),
    ]
    before = set(folder.glob("*.whl"))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(f"pip wheel failed:\n{(done.stdout + done.stderr)[-3000:]}")
    newest = max(folder.glob("*.whl"), key=lambda path: (path not in before, path.stat().st_mtime))
    with zipfile.ZipFile(newest) as archive:
        manifests = [n for n in archive.namelist() if n.endswith("_pack/manifest.json")]
        if tree.joinpath("manifest.json").read_bytes() not in map(archive.read, manifests):
            raise UsageError(
                f"{display_path(newest)} does not hold the kernels of {display_path(tree)}: does "
                "the project's CMakeLists.txt call kernelmint_add_pack?"
            )
        sizes = [i.file_size for i in archive.infolist() if re.search(r"_pack/.*\.so$", i.filename)]
    return newest, sum(sizes)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("used", type=click.Path(path_type=Path))
@click.option(
    "--specs", multiple=True, type=click.Path(path_type=Path), default=[Path("kernel_specs")],
    show_default=True, metavar="DIR", help="A folder of specs; may be repeated.",
)  # fmt: skip
@click.option(
    "--set", "name", metavar="NAME", default="used", show_default=True, help="The set's name."
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("generated-used"), show_default=True,
    metavar="DIR", help="The generated tree.",
)  # fmt: skip
@click.option(
    "--wheel", type=click.Path(path_type=Path), metavar="DIR",
    help="Build a wheel into DIR, and compare the sizes of libraries.",
)  # fmt: skip
def main(used: Path, specs: tuple[Path, ...], name: str, out: Path, wheel: Path | None) -> None:
    """Makes a set, and a tree to build, of the kernels in USED, which KERNELMINT_RECORD wrote.

    \b
    Examples:
      kernelmint slim used.yaml --wheel dist
    """
    try:
        families = load(specs)
    except SpecError as error:
        raise click.UsageError("\n".join(map(str, error.problems))) from None
    try:
        used_configurations, foreign = by_target(read_keys(used), families)
        texts, lines = {}, []
        for target in (t for family in families for t in family.targets):
            configurations = used_configurations.get(target, [])
            if not configurations and all(s.name != name for s in target.sets):
                continue
            entries = [explain.entry(target, values) for values in configurations]
            path = Path(target.display)
            texts[path] = with_set(path.read_text(encoding="utf-8"), name, entries)
            lines.append(f"{target.display}: set {name} with {counted(len(entries), 'kernel')}")
        for key in foreign:
            click.echo(f"these specs do not have {key}", err=True)
        if not used_configurations:
            raise UsageError(f"{display_path(used)}: none of its keys is of these specs")
        write_sets(specs, texts)
        click.echo("\n".join(lines))
        tree = pipeline.generate(specs, out, Selection(name, None))
        writer.write(out, tree.files)
        count = sum(len(t.configurations) for space in tree.spaces for t in space.targets)
        click.echo(f"{display_path(out)}: {counted(count, 'kernel')}")
        if wheel is None:
            option = f"-C cmake.define.KERNELMINT_GENERATED_DIR={out.resolve()}"
            click.echo(f"next: pip install . {option}")
            return
        before = _installed_bytes([family.name for family in families])
        wheel_file, after = _build_wheel(wheel, out)
        click.echo(
            f"{display_path(wheel_file)}: libraries of {after / 1e6:.1f} MB; those installed have "
            f"{before / 1e6:.1f} MB"
        )
    except OSError as error:
        raise click.ClickException(str(error)) from None
    except (SpecError, UsageError, ReportError) as error:
        problems = error.problems if isinstance(error, SpecError) else [error]
        raise click.ClickException("\n".join(map(str, problems))) from None


if __name__ == "__main__":
    main()
