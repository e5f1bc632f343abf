"""What the tools know of torch_scatter_gather_coo beyond its spec and its reference."""

from __future__ import annotations

__all__ = ["CASES"]

CASES = tuple({"sizes": {"B": 2, "N": 9, "K": columns, "E": 60}} for columns in (1, 130))
