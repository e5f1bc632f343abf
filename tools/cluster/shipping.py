"""Specs by their content, for machines that share no file system."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import runtime
from codegen.sources import build_paths
from codegen.spec.model import Family
from runtime.ondemand.cache import Cache
from runtime.ondemand.packed import write
from runtime.ondemand.specs import Source


@dataclass(frozen=True)
class Specs:
    """The files that a family's kernels are built from, and its reference.

    Attributes:
        id: the hash of the files.
        folder: the family's.
        files: by their path, with forward slashes.
    """

    id: str
    folder: str
    files: Mapping[str, bytes]


def collect(source: Source, family: Family) -> Specs:
    """Collects the folder `kernel_specs` around a family, else only the family's folder, and the
    files and folders that its `build:` names, except those of Python packages."""
    shared = source.root.name == "kernel_specs"
    paths = [source.root if shared else source.folder]
    for build in (family.build, *(target.build for target in family.targets)):
        for path in build.paths:
            if path.specs is not None:
                paths.append(build_paths.named(path.entry, {path.specs: source.root}))
    above = Path(os.path.commonpath([source.root.parent, *(path.parent for path in paths)]))
    files = {
        path.relative_to(above).as_posix(): path.read_bytes()
        for folder in paths
        for path in ([folder] if folder.is_file() else sorted(folder.rglob("*")))
        if path.is_file() and "__pycache__" not in path.parts
    }
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return Specs(digest.hexdigest()[:16], source.folder.relative_to(above).as_posix(), files)


def unpack_specs(specs: Specs, cache: Cache) -> Path:
    """Makes the family known here; returns its folder within the cache's."""
    folder = cache.folder / "specs" / specs.id
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=folder.parent))
        write(specs.files, partial)
        try:
            partial.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(partial)
    runtime.load(folder / specs.folder)
    return folder / specs.folder
