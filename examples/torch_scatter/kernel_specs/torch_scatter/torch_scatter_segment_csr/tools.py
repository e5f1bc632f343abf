"""What the tools know of torch_scatter_segment_csr beyond its spec and its reference."""

from __future__ import annotations

__all__ = ["CASES"]

_INDPTR = ((0, 2, 5, 5, 9), (1, 1, 4, 8, 9))

# Rows of no value, one and several; a thread a row (K of 1), and one an element.
CASES = tuple(
    {
        "parameters": {"reduce": reduce},
        "sizes": {"B": 2, "E": 9, "K": columns, "P": 5},
        "values": {"indptr": _INDPTR},
        "options": {"return_arg": True} if reduce in ("min", "max") else {},
    }
    for reduce in ("sum", "mean", "min", "max")
    for columns in (1, 130)
)
