"""Completion of words in a shell: the keys, families, targets, sets and names of the specs and the
tree here and of the installed packs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from codegen.core import packs, staleness


def keys(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Returns the keys that begin with the word."""
    keys_ = (kernel["key"] for _, target in _targets() for kernel in target["kernels"])
    return sorted({key for key in keys_ if key.startswith(incomplete)})


def families(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Returns the families that begin with the word."""
    names = {family for family, _ in _targets()} | {path.parent.name for path in _specs()}
    return sorted(name for name in names if name.startswith(incomplete))


def targets(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Returns the targets that begin with the word."""
    names = {target["name"] for _, target in _targets()}
    names |= {path.stem for path in _specs() if re.fullmatch(r"cpu|sm\d+[af]?", path.stem)}
    return sorted(name for name in names if name.startswith(incomplete))


def sets(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Returns the sets of the specs here and of installed packs that begin with the word."""
    installed = [
        path
        for pack in packs.installed()[0]
        for folder in pack.specs.values()
        for path in staleness.spec_files(folder)
    ]
    names = {name for path in (*_specs(), *installed) for name in _sets(path)}
    return sorted(name for name in names if name.startswith(incomplete))


def expressions(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Returns expressions that begin with the word and end in a name: a parameter's, `family` or
    `target`."""
    begin = incomplete[: len(incomplete) - len(re.split(r"\W", incomplete)[-1])]
    names = {"family", "target"}
    for kernel in (kernel for _, target in _targets() for kernel in target["kernels"][:1]):
        names |= {*kernel["parameters"], *kernel["derived"]}
    return sorted(begin + name for name in names if (begin + name).startswith(incomplete))


def _specs() -> list[Path]:
    """Returns the YAML files of the folder's families."""
    return [*staleness.spec_files(Path("kernel_specs"))]


def _sets(path: Path) -> list[str]:
    """Returns the names under `sets:` of a target's file, read line by line, since a shell
    waits."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return []
    section = re.search(r"^sets:[ ]*\n((?:[ ].*\n|\s*\n|#.*\n)*)", f"{text}\n", re.MULTILINE)
    return re.findall(r"^ {2}([a-z]\w*):", section[1], re.MULTILINE) if section else []


def _targets() -> Iterator[tuple[str, dict[str, Any]]]:
    """Returns all targets, each with its family's name."""
    for folder in (Path("generated"), *(pack.folder for pack in packs.installed()[0])):
        for family in staleness.read_manifest(folder).get("families", []):
            for target in family["targets"]:
                yield family["name"], target
