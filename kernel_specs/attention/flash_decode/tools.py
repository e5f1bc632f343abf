"""Hooks of flash_decode for the tools."""

from __future__ import annotations

from ..tools.contenders import DECODING as contenders
from ..tools.problems import decoding as problems

__all__ = ["CASES", "contenders", "problems"]

_SIZES = {"B": 2, "Sq": 2, "H": 4, "Hk": 2, "D": 64, "Dv": 64}

# Caches of tails of steps and of one key; the same in pages that lie in random order.
CASES = (
    {
        "parameters": {"paged": False},
        "sizes": {**_SIZES, "N": 2, "P": 150, "pages": 1},
        "values": {"seqused_k": (150, 67)},
    },
    {
        "parameters": {"paged": True},
        "sizes": {**_SIZES, "N": 7, "P": 16, "pages": 3},
        "values": {"seqused_k": (2, 45), "block_table": ((6, 0, 0), (5, 1, 3))},
        "options": {"return_lse": True},
    },
)
