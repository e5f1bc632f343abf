"""What the tools know of torch_scatter_segment_csr beyond its spec and its reference."""

from __future__ import annotations

__all__ = ["CASES"]

# A thread a row (K of 1), and one an element.
CASES = tuple(
    {
        "parameters": {"reduce": reduce},
        "sizes": {"B": 2, "E": 60, "K": columns, "P": 10},
        "options": {"return_arg": True} if reduce in ("min", "max") else {},
    }
    for reduce in ("sum", "mean", "min", "max")
    for columns in (1, 130)
)
