"""Refuses an nvcc that compiles a kernel wrongly by the table of advice. Standard library only.

    python codegen/ptxas/check_toolkit.py MANIFEST SPECS ... --nvcc 13.0.88 --architectures 80 90a

for CMake: exit status 1, and the row, if a table in one of the folders of specs says so of a kernel
of the manifest.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if not __package__:  # run by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    __package__ = "codegen.ptxas"

from codegen.core import advice
from codegen.core.ptxas_rows import ReportError
from codegen.ptxas.fingerprints import Manifest, SourceFingerprint

_LEAVE_OUT = (
    "To do without these kernels, `kernelmint regenerate --out DIR --where EXPR` writes a tree of "
    "the others, and KERNELMINT_GENERATED_DIR=DIR builds it"
)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("manifest", type=Path)
    parser.add_argument("specs", type=Path, nargs="+")
    parser.add_argument("--nvcc", required=True)
    parser.add_argument("--architectures", nargs="+", required=True)
    options = parser.parse_args(arguments)
    try:
        manifest = Manifest(options.manifest)
        code = SourceFingerprint(manifest, options.specs).of
        keys, architectures = manifest.kernels.keys(), options.architectures
        for folder in options.specs:
            table = folder / advice.NAME
            if why := advice.refusal(table, keys, architectures, options.nvcc, code):
                raise advice.AdviceError(f"{why}. {_LEAVE_OUT}")
    except (advice.AdviceError, ReportError) as error:
        print(error, file=sys.stderr, end="")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
