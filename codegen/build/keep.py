"""Copies the files that a build includes, or runs at each object, to a path that stays.

    keep.py SOURCE COPY [--without NAME ...]

prints a path with the content of the file or folder SOURCE. That is SOURCE itself if it lies in
this Python's environment; else COPY, with the same content. pip builds in an isolated environment,
whose folder has another name each time: ninja and ccache would take every object for changed. A
file of the copy with the right content keeps its time. Standard library only.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path


def files_of(folder: Path, without: set[str]) -> Iterator[Path]:
    """Returns the files below a folder, relative to it; `without` names folders to leave out."""
    for root, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if name not in without]
        yield from (Path(root, name).relative_to(folder) for name in names)


def copy_file(source: Path, copy: Path) -> None:
    """Copies a file, whole or not at all, unless the copy already has its content."""
    if copy.is_file() and filecmp.cmp(source, copy, shallow=False):
        return
    copy.parent.mkdir(parents=True, exist_ok=True)
    partial = copy.with_name(f"{copy.name}.{os.getpid()}.part")
    shutil.copyfile(source, partial)
    shutil.copymode(source, partial)
    partial.replace(copy)


def copy_folder(source: Path, copy: Path, without: set[str]) -> None:
    """Makes a folder hold exactly the files of another."""
    files = set(files_of(source, without))
    for path in sorted(files):
        copy_file(source / path, copy / path)
    for path in set(files_of(copy, set())) - files:
        (copy / path).unlink()


def main(arguments: list[str]) -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=Path)
    parser.add_argument("copy", type=Path)
    parser.add_argument("--without", action="append", default=[])
    options = parser.parse_args(arguments)
    kept = options.source
    if not kept.resolve().is_relative_to(Path(sys.prefix).resolve()):
        kept = options.copy
        if options.source.is_dir():
            copy_folder(options.source, kept, {"__pycache__", *options.without})
        else:
            copy_file(options.source, kept)
    print(kept.as_posix(), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
