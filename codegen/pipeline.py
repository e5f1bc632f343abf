"""load -> expand -> emit, for the commands."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from codegen.core import staleness
from codegen.core.manifest import Selection
from codegen.core.problems import Problem, SpecError, UsageError
from codegen.core.staleness import specs_folder
from codegen.core.words import display_path
from codegen.emit.manifest import Inputs
from codegen.emit.tree import emit
from codegen.space.expand import FamilySpace, expand
from codegen.spec.load import load
from codegen.spec.model import Family


@dataclass(frozen=True)
class Tree:
    """A tree that codegen would write."""

    spaces: tuple[FamilySpace, ...]
    files: dict[str, str]


def generate(spec_dirs: Sequence[Path], out: Path, selection: Selection) -> Tree:
    """Returns the tree that `out` must hold. Raises SpecError or UsageError."""
    for folder in (*spec_dirs, out):
        if not str(folder).isprintable():
            raise UsageError(f"{str(folder)!a} cannot be written into a file: rename it")
    families = load(spec_dirs)
    if problems := list(_absent(families, spec_dirs)):
        raise SpecError(problems)
    spaces = expand(families, selection)
    return Tree(spaces, emit(spaces, _inputs(spec_dirs, out, selection)))


def _absent(families: Sequence[Family], spec_dirs: Sequence[Path]) -> Iterator[Problem]:
    """Yields absent files and folders that `build:` names relative to the specs. A pack does not
    ship them, so loading its specs does not check them."""
    folders = {specs_folder(folder).name: folder for folder in spec_dirs}
    builds = [family.build for family in families]
    builds += [target.build for family in families for target in family.targets]
    for build in builds:
        for named in build.paths:
            if named.specs is None:
                continue
            path = folders[named.specs] / named.path
            is_folder = named in build.include and not named.is_excerpt
            if not (os.path.isdir(path) if is_folder else os.path.isfile(path)):
                shown = display_path(Path(os.path.normpath(path)))
                what = "folder" if is_folder else "file"
                yield Problem(named.location, f"there is no {what} {shown}")


def _inputs(spec_dirs: Sequence[Path], out: Path, selection: Selection) -> Inputs:
    specs = [
        (f"{_relative(folder, out)}/{path.relative_to(folder).as_posix()}", _hash(path))
        for folder in spec_dirs
        for path in staleness.spec_files(folder)
    ]
    return Inputs(
        selection=selection,
        spec_dirs=tuple(_relative(folder, out) for folder in spec_dirs),
        spec_names=tuple(specs_folder(folder).name for folder in spec_dirs),
        specs=tuple(sorted(specs)),
    )


def _hash(path: Path) -> str:
    digest = staleness.sha256(path)
    if digest is None:
        raise UsageError(f"cannot read {display_path(path)}")
    return digest


def _relative(folder: Path, out: Path) -> str:
    return Path(os.path.relpath(specs_folder(folder), out.resolve())).as_posix()
