"""load -> expand -> emit, for the commands."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from codegen import staleness
from codegen.emit import emit
from codegen.load import load
from codegen.manifest import Inputs
from codegen.problems import UsageError, display_path
from codegen.space import FamilySpace, Selection, expand

CODEGEN_DIR = Path(__file__).parent


@dataclass(frozen=True)
class Tree:
    """A tree that codegen would write."""

    spaces: tuple[FamilySpace, ...]
    files: dict[str, str]


def build(spec_dirs: Sequence[Path], out: Path, selection: Selection) -> Tree:
    """What `out` must hold. Raises SpecError or UsageError."""
    spaces = expand(load(spec_dirs), selection)
    return Tree(spaces, emit(spaces, _inputs(spec_dirs, out, selection)))


def _inputs(spec_dirs: Sequence[Path], out: Path, selection: Selection) -> Inputs:
    paths = [path for folder in spec_dirs for path in staleness.spec_files(folder)]
    paths += staleness.codegen_files(CODEGEN_DIR)
    hashes = []
    for path in paths:
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise UsageError(f"cannot read {display_path(path)}: {error.strerror}") from None
        hashes.append((_relative(path, out), digest))
    return Inputs(
        selection=selection,
        spec_dirs=tuple(_relative(folder, out) for folder in spec_dirs),
        codegen_dir=_relative(CODEGEN_DIR, out),
        hashes=tuple(sorted(hashes)),
    )


def _relative(path: Path, out: Path) -> str:
    return Path(os.path.relpath(path.resolve(), out.resolve())).as_posix()
