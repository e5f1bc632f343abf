"""Tensors as text, in the form of the seed's debug files: groups of 8, two decimals."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

GROUP = 8


def number_lines(values: Tensor, decimals: int = 2) -> Iterator[str]:
    """Returns a line for each row of a matrix; a vector is one row. Groups of 8 are separated by a
    bar."""
    rows = values.double().cpu().reshape(-1, values.shape[-1] if values.dim() else 1).tolist()
    width = max((len(f"{x:.{decimals}f}") for row in rows for x in row), default=1)
    for row in rows:
        cells = [f"{x:{width}.{decimals}f}" for x in row]
        groups = (" ".join(cells[i : i + GROUP]) for i in range(0, len(cells), GROUP))
        yield " | ".join(groups)
