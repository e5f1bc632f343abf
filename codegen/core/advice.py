"""The table of advice: what toolkits make of kernels, `toolkits.csv` in a folder of specs.
`ptx-report toolkits --record` writes the table. Standard library only.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

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
    code: str  # the fingerprint of a kernel's source, or of a set's
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
                rows.append(Row._make([*cells[:4], *map(int, cells[4:-2]), *cells[-2:]]))
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
    path: Path,
    keys: Collection[str],
    architectures: Sequence[str],
    nvcc: str,
    code: Callable[[str], str | None],
) -> str | None:
    """Returns why an nvcc is not to compile kernels: the first row of a table that says so, the
    other kernels of such rows, and the nearest nvcc that is right; None if no row says so of the
    sources that are there.

    Args:
        path: the table.
        keys: of the kernels.
        architectures: what they are compiled for, such as "90a".
        nvcc: its version.
        code: returns the fingerprint of a kernel's source.

    Raises:
        AdviceError: the table has another form.
    """
    rows = read(path)
    built = [named.capability for name in architectures if (named := spelt(name))]
    wrong: list[tuple[int, Row]] = []
    for line, row in enumerate(rows, 2):
        if row.set or not row.wrong or row.nvcc != nvcc or row.kernels not in keys:
            continue
        target = of_target(row.kernels.split(".")[1])
        if target is None or row.arch not in {f"sm_{target.on(number)}" for number in built}:
            continue
        if row.code == code(row.kernels):  # else the row is of another source
            wrong.append((line, row))
    if not wrong:
        return None
    line, row = wrong[0]
    of_all = [_right(rows, row) for _, row in wrong]
    right = [version for version in of_all[0] if all(version in other for other in of_all)]
    at = numbers(nvcc)
    nearest = min(
        right, default=None,
        key=lambda one: [abs(a - b) for a, b in zip(numbers(one), at, strict=False)],
    )  # fmt: skip
    others = list(
        dict.fromkeys(row.kernels for _, row in wrong if row.kernels != wrong[0][1].kernels)
    )
    it = "it" if not others else "them"
    more = f", and {len(others)} more of these kernels: {', '.join(others)}" if others else ""
    advice = (
        f"nvcc {nearest} compiles {it} rightly: name it by CUDACXX"
        if nearest
        else "no other nvcc was tried"
        if not any(of_all)
        else f"no nvcc that was tried compiles all of {it} rightly"
    )
    return (
        f"nvcc {nvcc} compiles {row.kernels} wrongly for {row.arch} ({path}:{line}: "
        f"{row.note}){more}: {advice}. `ptx-report toolkits --key {row.kernels} --nvcc {nvcc} "
        f"--architecture {row.arch[3:]} --record` tries it anew"
    )


def _right(rows: Iterable[Row], wrong: Row) -> list[str]:
    """Returns the versions of nvcc that compile a row's kernel rightly."""
    return [
        row.nvcc
        for row in rows
        if (row.kernels, row.arch, row.code) == (wrong.kernels, wrong.arch, wrong.code)
        and row.compiled and not row.wrong
    ]  # fmt: skip
