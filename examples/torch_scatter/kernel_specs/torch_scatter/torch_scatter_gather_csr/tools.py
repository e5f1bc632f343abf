"""Hooks of the tools for torch_scatter_gather_csr."""

from __future__ import annotations

from .reference import EXTENT

__all__ = ["CASES"]

CASES = tuple(
    {"sizes": {"B": 2, "N": 9, "K": columns, "P": 10}, "options": {"E": EXTENT}}
    for columns in (1, 130)
)
