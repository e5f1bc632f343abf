"""Hooks of flash_prefill for the tools."""

from __future__ import annotations

from functools import partial

from ..tools.contenders import PACKED as contenders
from ..tools.problems import Packed, packed

__all__ = ["CASES", "contenders", "problems"]

problems = partial(packed, Packed)

_SIZES = {"H": 4, "Hk": 2, "D": 64, "Dv": 64, "Cq": 4, "Ck": 4, "pages": 1}

# Packed sequences, an empty one among them; batches whose keys lie in pages, in random order.
CASES = (
    {
        "sizes": {**_SIZES, "Nq": 1, "Tq": 150, "Nk": 1, "Tk": 170},
        "values": {"cu_seqlens_q": (0, 70, 70, 150), "cu_seqlens_k": (0, 80, 90, 170)},
    },
    {
        "sizes": {**_SIZES, "Nq": 2, "Tq": 70, "Nk": 7, "Tk": 32, "pages": 3},
        "values": {"seqused_k": (2, 90), "block_table": ((6, 0, 0), (5, 1, 3))},
        "options": {"return_lse": True, "window_right": 0},
    },
)
