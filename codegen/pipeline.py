"""load -> expand -> emit, for the commands."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from codegen import staleness
from codegen.emit.manifest import Inputs
from codegen.emit.tree import emit
from codegen.space.expand import FamilySpace, Selection, expand
from codegen.spec.load import load
from codegen.spec.problems import UsageError, display_path


@dataclass(frozen=True)
class Tree:
    """A tree that codegen would write."""

    spaces: tuple[FamilySpace, ...]
    files: dict[str, str]


def build(spec_dirs: Sequence[Path], out: Path, selection: Selection) -> Tree:
    """What `out` must hold. Raises SpecError or UsageError."""
    for folder in (*spec_dirs, out):
        if not str(folder).isprintable():
            raise UsageError(f"{str(folder)!a} cannot be written into a file: rename it")
    spaces = expand(load(spec_dirs), selection)
    return Tree(spaces, emit(spaces, _inputs(spec_dirs, out, selection)))


def _inputs(spec_dirs: Sequence[Path], out: Path, selection: Selection) -> Inputs:
    specs = [path for folder in spec_dirs for path in staleness.spec_files(folder)]
    own = staleness.codegen_files()
    return Inputs(
        selection=selection,
        spec_dirs=tuple(_relative(folder, out) for folder in spec_dirs),
        specs=tuple(sorted((_relative(path, out), _hash(path)) for path in specs)),
        codegen=tuple(sorted((name, _hash(path)) for name, path in own.items())),
    )


def _hash(path: Path) -> str:
    digest = staleness.sha256(path)
    if digest is None:
        raise UsageError(f"cannot read {display_path(path)}")
    return digest


def _relative(path: Path, out: Path) -> str:
    return Path(os.path.relpath(path.resolve(), out.resolve())).as_posix()
