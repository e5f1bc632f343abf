"""What the tools know of torch_scatter_segment_coo beyond its spec and its reference."""

from __future__ import annotations

__all__ = ["CASES"]

_INDEX = ((0, 0, 1, 1, 1, 3, 3, 3, 3), (1, 1, 2, 2, 2, 2, 2, 3, 3))

# Rows of no value, one and several; a thread an index (K of 1), and several a thread.
CASES = tuple(
    {
        "parameters": {"reduce": reduce},
        "sizes": {"B": 2, "E": 9, "K": columns, "N0": 4},
        "values": {"index": _INDEX},
        "options": {"N": 4} | ({"return_arg": True} if reduce in ("min", "max") else {}),
    }
    for reduce in ("sum", "mean", "min", "max")
    for columns in (1, 130)
)
