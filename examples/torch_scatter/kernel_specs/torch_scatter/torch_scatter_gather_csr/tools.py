"""What the tools know of torch_scatter_gather_csr beyond its spec and its reference."""

from __future__ import annotations

__all__ = ["CASES"]

CASES = tuple(
    {
        "sizes": {"B": 2, "N": 4, "K": columns, "P": 5},
        "values": {"indptr": ((0, 2, 5, 5, 9), (0, 1, 4, 8, 9))},
        "options": {"E": 9},
    }
    for columns in (1, 130)
)
