"""What the tools know of torch_scatter_scatter beyond its spec and its reference."""

from __future__ import annotations

from .reference import ROWS

__all__ = ["CASES"]

CASES = tuple(
    {
        "parameters": {"reduce": reduce},
        "sizes": {"B": 2, "E": 60, "K": columns, "N0": ROWS},
        "options": {"N": ROWS} | ({"return_arg": True} if reduce in ("min", "max") else {}),
    }
    for reduce in ("mul", "min", "max")
    for columns in (1, 130)
)
