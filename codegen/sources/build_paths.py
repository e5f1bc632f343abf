"""Paths of the files and folders that a family's `build:` names; the manifest has them as

    {"specs": "kernel_specs", "path": "../third_party/include"}    relative to that folder of specs
    {"package": "cutlass_library", "path": "source/include", "pip": "nvidia-cutlass"}
    {"archive": "pypi:causal-conv1d==1.7.0", "sha256": "320275…", "path": "csrc"}
    {"shims": "torch", "path": ""}                                 of runtime/include/shims

With "excerpt", "take" and "kernels", the entry of a file names the folder of a header of its
definitions.

    python codegen/sources/build_paths.py TEXT

prints the path of one of a package, an archive or an excerpt, for CMake, which has them as
package:PACKAGE:PATH:PIP, archive:SHA256:PATH:ORIGIN and excerpt:HEADER:KERNELS:TAKE:FILE (of which
FILE is such a text or a path), and shims as shims:NAME; exit status 1 if there is no such path.
Standard library only.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

if __name__ == "__main__":  # it is run by its path; modules of its folder are not packages
    sys.path[0] = str(Path(__file__).resolve().parents[2])


from codegen.core import home


class PathNotFoundError(LookupError):
    """A file or folder is not there; the message names it, and says what to do."""


def find(entry: Mapping[str, str], specs: Mapping[str, Path]) -> Path:
    """Returns the absolute path of an entry of a manifest's `build`; `specs` are the folders of
    specs by name. Raises PathNotFoundError."""
    place = named(entry, specs)
    return _excerpt(place, entry) if "excerpt" in entry else place


def named(entry: Mapping[str, str], specs: Mapping[str, Path]) -> Path:
    """Returns the path that an entry names: for an excerpt, of the file that it is taken from.
    Raises PathNotFoundError."""
    if "package" in entry:
        return in_package(entry["package"], entry["path"], entry["pip"])
    if "archive" in entry:
        return in_archive(entry["sha256"], entry["path"], entry["archive"])
    if "shims" in entry:
        return home.INCLUDE / "shims" / entry["shims"]
    path = (specs[entry["specs"]] / entry["path"]).resolve()
    if not os.path.exists(path):
        raise PathNotFoundError(f"there is no {path}, which a spec's `build:` names")
    return path


def as_text(entry: Mapping[str, str], path: str = "") -> str:
    """Returns an entry as CMake has it; `path` is the path of an entry of specs."""
    if "excerpt" in entry:
        file = {name: text for name, text in entry.items() if name != "excerpt"}
        excerpt = f"{entry['excerpt']}:{entry['kernels']}:{entry['take']}"
        return f"excerpt:{excerpt}:{as_text(file, path)}"
    if "specs" in entry:
        return path
    if "shims" in entry:
        return f"shims:{entry['shims']}"
    if "package" in entry:
        return f"package:{entry['package']}:{entry['path']}:{entry['pip']}"
    return f"archive:{entry['sha256']}:{entry['path']}:{entry['archive']}"


def in_package(package: str, path: str, pip: str) -> Path:
    """Returns the path of a file or folder of an installed package, which is not imported. Raises
    PathNotFoundError."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise PathNotFoundError(
            f"there is no Python package {package}, which a spec's `build:` names: "
            f'pip install "{pip}", and name it in build-system.requires of pyproject.toml, since '
            "an isolated build sees nothing else"
        )
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    place = next((folder / path for folder in folders if os.path.exists(folder / path)), None)
    if place is None:
        raise PathNotFoundError(
            f"the Python package {package} ({', '.join(map(str, folders)) or 'no folder'}) has no "
            f"{path}, which a spec's `build:` names: is it the right version of {pip}?"
        )
    return place.resolve()


def in_archive(sha256: str, path: str, origin: str) -> Path:
    """Returns the path of a file or folder of an archive, which is fetched if the cache lacks it.
    Raises PathNotFoundError."""
    from codegen.sources import archives  # slow to import, and rarely needed

    try:
        return archives.find(origin, sha256, path)
    except archives.ArchiveError as error:
        raise PathNotFoundError(str(error)) from None


def _excerpt(file: Path, entry: Mapping[str, str]) -> Path:
    from codegen.sources import excerpts  # rarely needed

    try:
        return excerpts.folder(file, entry)
    except excerpts.ExcerptError as error:
        raise PathNotFoundError(str(error)) from None


def _entry(text: str) -> dict[str, str]:
    """Inverts `as_text`."""
    kind, *parts = text.split(":", 3)
    if kind == "excerpt":
        take, _, file = parts[2].partition(":")
        return {**_entry(file), "excerpt": parts[0], "kernels": parts[1], "take": take}
    names = {"package": ("package", "path", "pip"), "archive": ("sha256", "path", "archive")}
    if kind in names:
        return dict(zip(names[kind], parts, strict=True))
    return {"specs": "", "path": text}


def main(arguments: list[str]) -> int:
    """Runs the command."""
    try:
        print(find(_entry(arguments[0]), {"": Path()}), end="")
    except PathNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
