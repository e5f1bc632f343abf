"""Where files and folders are that a family's `build:` names; the manifest has them as

    {"specs": "kernel_specs", "path": "../third_party/include"}    relative to that folder of specs
    {"package": "cutlass_library", "path": "source/include", "pip": "nvidia-cutlass"}

    python codegen/build_paths.py PACKAGE PATH PIP

prints the path of the second kind, for CMake; exit status 1 if there is none. Standard library
only.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path


class PathNotFoundError(LookupError):
    """A file or folder is not there; the message says which, and what to do."""


def find(entry: Mapping[str, str], specs: Mapping[str, Path]) -> Path:
    """The absolute path of an entry of a manifest's `build`; `specs` are the folders of specs by
    name. Raises PathNotFoundError."""
    if "package" in entry:
        return in_package(entry["package"], entry["path"], entry["pip"])
    path = (specs[entry["specs"]] / entry["path"]).resolve()
    if not os.path.exists(path):
        raise PathNotFoundError(f"there is no {path}, which a spec's `build:` names")
    return path


def in_package(package: str, path: str, pip: str) -> Path:
    """A file or folder of an installed package, which is not imported. Raises
    PathNotFoundError."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise PathNotFoundError(
            f"there is no Python package {package}, which a spec's `build:` names: "
            f'pip install "{pip}", and name it in build-system.requires of pyproject.toml, since '
            "an isolated build sees nothing else"
        )
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    found = next((folder / path for folder in folders if os.path.exists(folder / path)), None)
    if found is None:
        raise PathNotFoundError(
            f"the Python package {package} ({', '.join(map(str, folders)) or 'no folder'}) has no "
            f"{path}, which a spec's `build:` names: is it the right version of {pip}?"
        )
    return found.resolve()


def main(arguments: list[str]) -> int:
    """The command."""
    try:
        print(in_package(*arguments), end="")
    except PathNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    # Modules of this file's folder are not packages.
    sys.path = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).parent]
    sys.exit(main(sys.argv[1:]))
