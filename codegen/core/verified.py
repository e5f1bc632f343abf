"""Records of verified kernels: `<target>.verified.csv` beside a family's specs, which travels with
them. Standard library only.

A row records the result for one kernel's machine code on one device; a kernel that is compiled into
other code has to be verified anew.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

RIGHT = "right"


class Row(NamedTuple):
    """The result of verifying a kernel's machine code."""

    kernel_config: str
    arch: str  # the code's architecture, sm_90; or the instruction set of CPU kernels, avx512
    toolchain: str  # nvcc 13.0.88
    code: str  # the hash of the machine code
    device: str  # the device that it ran on, by PyTorch's name
    checks: str  # "reference", and the sanitizer's tools
    outcome: str  # right; or the error

    @property
    def is_right(self) -> bool:
        """Returns whether all checks passed."""
        return self.outcome == RIGHT


class VerifiedError(ValueError):
    """A file of rows does not have the form that `kernelmint verify` writes."""


def name_of(target: str) -> str:
    """Returns the name of a target's file."""
    return f"{target}.verified.csv"


def read(path: Path) -> list[Row]:
    """Reads the rows of a file; an absent file has no rows. Raises VerifiedError."""
    if not path.exists():
        return []
    try:
        table = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8"))))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise VerifiedError(f"{path}: {error}: verify the kernels anew") from None
    for i, cells in enumerate(table):
        if len(cells) != len(Row._fields) or (i == 0) != (tuple(cells) == Row._fields):
            raise VerifiedError(
                f"{path}:{i + 1}: expected a header and {len(Row._fields)} cells in each line "
                f"({', '.join(Row._fields)}): verify the kernels anew"
            )
    return [Row(*cells) for cells in table[1:]]


def text(rows: Iterable[Row]) -> str:
    """Returns the text of the file of rows, in order."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(Row._fields)
    writer.writerows(sorted(rows))
    return out.getvalue()


def merged(old: Iterable[Row], new: Iterable[Row]) -> list[Row]:
    """Returns rows with new ones, which replace those of the same kernel, architecture, toolchain
    and device, whatever their code."""

    def of(row: Row) -> tuple[str, ...]:
        return row.kernel_config, row.arch, row.toolchain, row.device

    return [*{of(row): row for row in (*old, *new)}.values()]
