"""Hooks of the tools for torch_scatter_gather_coo."""

from __future__ import annotations

__all__ = ["CASES"]

CASES = tuple({"sizes": {"B": 2, "N": 9, "K": columns, "E": 60}} for columns in (1, 130))
