"""Hooks of flash_prefill_backward for the tools."""

from __future__ import annotations

from functools import partial

from ..tools.contenders import PACKED_GRADIENTS as contenders
from ..tools.problems import PackedGradients, packed

__all__ = ["CASES", "contenders", "problems"]

problems = partial(packed, PackedGradients)

_SIZES = {"H": 4, "Hk": 2, "D": 64, "Dv": 64, "Cq": 4, "Ck": 4, "Nq": 1, "Tq": 150, "Nk": 1}

# Packed sequences, an empty one among them, with log-sum-exps that make no probability above 1.
CASES = (
    {
        "sizes": {**_SIZES, "Tk": 170},
        "values": {
            "cu_seqlens_q": (0, 70, 70, 150),
            "cu_seqlens_k": (0, 80, 90, 170),
            "lse": (((6.0,) * 150,) * 4,),
            "s_aux": (0.5, -1.0, 0.0, 2.0),
        },
        "options": {"return_ds_aux": True, "window_right": 0},
    },
)
