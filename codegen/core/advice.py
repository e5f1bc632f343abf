"""The table of advice: what toolkits make of kernels, `toolkits.csv` in a folder of specs.

    python codegen/core/advice.py MANIFEST SPECS ... --nvcc 13.0.88 --architectures 80 90a

for CMake: exit status 1, and the row, if the table says that this nvcc compiles a kernel of the
manifest wrongly. `ptx-report toolkits --record` writes the table. Standard library only.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

if not __package__:  # run by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    __package__ = "codegen.core"

from codegen.core import manifest
from codegen.core.architectures import of_target, spelt

NAME = "toolkits.csv"


class Row(NamedTuple):
    """The result of an nvcc with a target's set for an architecture; or with one kernel, if one of
    the toolkits spills it, compiles it wrongly, or not at all. Numbers are of kernels."""

    kernels: str  # family.target; or the kernel's key
    set: str  # empty for a kernel
    arch: str  # sm_90
    nvcc: str  # 13.0.88
    kernel_count: int
    compiled: int
    spilled: int
    spill_bytes: int
    wrong: int  # by --sass or by verify
    verified: int  # whose machine code `kernelmint verify` found right
    note: str  # the fault, or the compiler's error


class AdviceError(ValueError):
    """A table does not have the form that `ptx-report toolkits` writes."""


def numbers(version: str) -> tuple[int, ...]:
    """Returns the numbers of a version, to compare."""
    return tuple(map(int, re.findall(r"\d+", version)))


def read(path: Path) -> list[Row]:
    """Reads the rows of a table; an absent file has no rows. Raises AdviceError."""
    if not path.exists():
        return []
    rows = []
    for line, cells in enumerate(csv.reader(io.StringIO(path.read_text(encoding="utf-8"))), 1):
        try:
            if line > 1:
                rows.append(Row._make([*cells[:4], *map(int, cells[4:-1]), cells[-1]]))
            elif tuple(cells) != Row._fields:
                raise ValueError
        except (TypeError, ValueError, IndexError):
            raise AdviceError(
                f"{path}:{line}: expected a header and {len(Row._fields)} cells in each line "
                f"({', '.join(Row._fields)}): `ptx-report toolkits --record` writes them"
            ) from None
    return rows


def text(rows: Iterable[Row]) -> str:
    """Returns the text of a table, in order."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(Row._fields)
    in_order = sorted(rows, key=lambda row: (row.kernels, row.set, row.arch, numbers(row.nvcc)))
    writer.writerows(in_order)
    return out.getvalue()


def refusal(
    path: Path, keys: Collection[str], architectures: Sequence[str], nvcc: str
) -> str | None:
    """Returns why an nvcc is not to compile these kernels for architectures ("80", "90a"): the
    first row of a table that says so, and the nearest nvcc that is right; None if none does.

    Raises AdviceError.
    """
    rows = read(path)
    built = [named.capability for name in architectures if (named := spelt(name))]
    for line, row in enumerate(rows, 2):
        if row.set or not row.wrong or row.nvcc != nvcc or row.kernels not in keys:
            continue
        target = of_target(row.kernels.split(".")[1])
        if target is None or row.arch not in {f"sm_{target.on(number)}" for number in built}:
            continue
        right = [
            other.nvcc
            for other in rows
            if (other.kernels, other.arch) == (row.kernels, row.arch)
            and other.compiled and not other.wrong
        ]  # fmt: skip
        at = numbers(nvcc)
        nearest = min(
            right, default=None,
            key=lambda one: [abs(a - b) for a, b in zip(numbers(one), at, strict=False)],
        )  # fmt: skip
        advice = f"nvcc {nearest} compiles it rightly" if nearest else "no other nvcc was tried"
        return (
            f"nvcc {nvcc} compiles {row.kernels} wrongly for {row.arch} ({path}:{line}: "
            f"{row.note}): {advice}. If the kernel has changed since, `ptx-report toolkits --key "
            f"{row.kernels} --nvcc {nvcc} --architecture {row.arch[3:]} --record` tries it anew"
        )
    return None


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("manifest", type=Path)
    parser.add_argument("specs", type=Path, nargs="+")
    parser.add_argument("--nvcc", required=True)
    parser.add_argument("--architectures", nargs="+", required=True)
    options = parser.parse_args(arguments)
    keys = {kernel.key for _, _, kernel in manifest.read(options.manifest).kernels}
    try:
        for folder in options.specs:
            if why := refusal(folder / NAME, keys, options.architectures, options.nvcc):
                raise AdviceError(why)
    except AdviceError as error:
        print(error, file=sys.stderr, end="")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
