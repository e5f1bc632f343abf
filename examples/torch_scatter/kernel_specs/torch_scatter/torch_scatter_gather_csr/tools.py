"""What the tools know of torch_scatter_gather_csr beyond its spec and its reference."""

from __future__ import annotations

from .reference import EXTENT

__all__ = ["CASES"]

CASES = tuple(
    {"sizes": {"B": 2, "N": 9, "K": columns, "P": 10}, "options": {"E": EXTENT}}
    for columns in (1, 130)
)
