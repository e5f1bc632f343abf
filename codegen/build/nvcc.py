"""The nvcc that compiles: the one that CUDACXX names, else the one on PATH, else PyPI's.

    python codegen/build/nvcc.py

prints its origin and its command, with a semicolon between, for CMake; without an nvcc, the reason,
and exit status 1. Standard library only.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

# The package nvcc pulls its parts in unpinned and leaves out CCCL, whose nv/target cuda_fp16.h
# includes: the metapackage pins one toolkit.
REQUIREMENT = "cuda-toolkit[nvcc,cccl]==13.0.*"


class Nvcc(NamedTuple):
    """A command that runs nvcc, and its origin."""

    command: tuple[str, ...]
    origin: str


class NvccNotFoundError(LookupError):
    """No nvcc was found; the message says where it was looked for, and what to do."""


def find() -> Nvcc:
    """Returns the nvcc that compiles here. Raises NvccNotFoundError."""
    if nvcc := of_machine():
        return nvcc
    if programs := in_pypi("nvcc"):
        return Nvcc((programs[-1],), "from PyPI")
    raise NvccNotFoundError(
        "no nvcc is named by CUDACXX, on PATH or installed from PyPI: put a CUDA "
        f'toolkit\'s bin folder on PATH, or `pip install "{REQUIREMENT}"`'
    )


def words(text: str) -> tuple[str, ...]:
    """Splits the command that a variable holds into words; a program's name or path that exists is
    one word, spaces included. Raises ValueError for quotes that do not close."""
    return (text,) if shutil.which(text) else tuple(shlex.split(text))


def of_machine() -> Nvcc | None:
    """Returns the machine's nvcc, whatever is installed from PyPI. Only folders of PATH count: an
    nvcc in /usr/local/bin that is not on PATH was not asked for. Raises NvccNotFoundError if
    CUDACXX is not a command."""
    if named := os.environ.get("CUDACXX"):
        try:
            return Nvcc(words(named), "named by CUDACXX")
        except ValueError as error:
            raise NvccNotFoundError(f"CUDACXX={named}: {error}") from None
    program = shutil.which("nvcc")
    return Nvcc((program,), "on PATH") if program else None


def in_pypi(program: str) -> list[str]:
    """Returns the programs of that name in toolkits from PyPI, the newest last."""
    spec = importlib.util.find_spec("nvidia")
    roots = (spec.submodule_search_locations or ()) if spec else ()
    return sorted(str(path) for root in roots for path in Path(root).glob(f"cu*/bin/{program}"))


def main() -> int:
    """Runs the command."""
    try:
        nvcc = find()
    except NvccNotFoundError as error:
        print(error, file=sys.stderr, end="")
        return 1
    print(nvcc.origin, *nvcc.command, sep=";", end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
