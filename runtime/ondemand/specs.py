"""Families' specs on disk: their folders, and the files that decide a kernel. None is read here."""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from codegen.core import staleness
from runtime.errors import InvalidArgument
from runtime.ondemand.cache import content

FAMILY = "family.yaml"


@dataclass(frozen=True)
class Source:
    """A family's spec on disk."""

    family: str
    root: Path  # the folder of specs, which headers are included from
    folder: Path  # the family's own folder

    def texts(self, target: str | None = None) -> list[Path]:
        """Returns the YAML files that decide a target's kernels; without a target, all of the
        family's."""
        own = sorted(self.folder.glob("*.y*ml"))
        group = sorted(self.folder.parent.glob("*.y*ml")) if self.folder.parent != self.root else []
        if target is None:
            return [*own, *group]
        return [p for p in (*own, *group) if p.name in (FAMILY, f"{target}.yaml")]

    def written(self, target: str | None = None) -> list[tuple[str, str]]:
        """Returns the names and hashes of these files, for a kernel's identity."""
        return [(p.relative_to(self.root).as_posix(), content(p)) for p in self.texts(target)]


def find(folder: Path) -> list[Source]:
    """Returns the families in a folder: of specs, of a group, or of one family.

    Raises InvalidArgument if there are none.
    """
    folder = Path(os.path.abspath(folder))
    if (folder / FAMILY).is_file():
        return [_source(_root_of(folder), folder)]
    root = folder if folder.name == "kernel_specs" else None
    families = [path.parent for path in sorted(folder.glob(f"*/{FAMILY}"))]
    grouped = [path.parent for path in sorted(folder.glob(f"*/*/{FAMILY}"))]
    grouped = [path for path in grouped if not (path.parent / FAMILY).is_file()]
    if root is None and families and not grouped:
        root = _root_of(families[0])
    sources = [_source(root or folder, path) for path in (*families, *grouped)]
    if not sources:
        raise InvalidArgument(
            f"{folder}: no families here: expected the folder of a family (it has a {FAMILY}), of "
            "a group, or of specs; `kernelmint new FAMILY` starts one"
        )
    return sources


def _source(root: Path, family: Path) -> Source:
    place = staleness.specs_folder(root)
    return Source(family.name, place, place / family.relative_to(root))


def here(family: str) -> Path | None:
    """Returns the folder of a family in the current folder's kernel_specs; None if it is not
    there."""
    try:
        return next((s.folder for s in find(Path("kernel_specs")) if s.family == family), None)
    except InvalidArgument:  # no such folder, or no families in it
        return None


def _root_of(family: Path) -> Path:
    """Returns the folder of specs that a family's folder is in: by convention `kernel_specs`,
    and if there is none of that name, the folder above."""
    above = [parent for parent in list(family.parents)[:2] if parent.name == "kernel_specs"]
    return above[0] if above else family.parent


def of_pack(family: str, folder: str, specs: dict[str, Path]) -> Source | None:
    """Returns the spec that a pack's family was made from, if the pack has it or names it:
    `folder` is the family's, "kernel_specs/hstu/block_sparse"."""
    name, _, below = folder.partition("/")
    if name not in specs:
        return None
    root = staleness.specs_folder(specs[name])
    place = root / below
    return Source(family, root, place) if (place / FAMILY).is_file() else None


@functools.cache
def codegen_identity() -> str:
    """Returns the hash of codegen's own files."""
    own = staleness.codegen_files()
    listed = "".join(f"{name} {staleness.sha256(path)}\n" for name, path in sorted(own.items()))
    return hashlib.sha256(listed.encode()).hexdigest()
