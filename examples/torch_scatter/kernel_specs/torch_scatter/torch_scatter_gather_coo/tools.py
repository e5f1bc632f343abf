"""What the tools know of torch_scatter_gather_coo beyond its spec and its reference."""

from __future__ import annotations

__all__ = ["CASES"]

CASES = tuple(
    {
        "sizes": {"B": 2, "N": 4, "K": columns, "E": 9},
        "values": {"index": ((0, 0, 1, 1, 1, 3, 3, 3, 3), (1, 1, 2, 2, 2, 2, 2, 3, 3))},
    }
    for columns in (1, 130)
)
