"""Hooks of the tools for causal_conv1d_channellast_fwd."""

from __future__ import annotations

__all__ = ["CASES"]

# Fewer elements than states, and several thread blocks along both; sequences, and none at the end.
_SIZES = {"B": 2, "D": 72}
_IDS = [[0] * 5 + [1] * 2 + [2] * 60 + [-1] * 3, [7] * 1 + [3] * 69]

CASES = (
    *(
        {
            "sizes": {**_SIZES, "L": length},
            "options": {"silu": silu, "return_final_states": True},
            "parameters": {"has_seq_idx": False},
        }
        for length in (1, 70)
        for silu in (False, True)
    ),
    *(
        {
            "sizes": {**_SIZES, "L": 70},
            "values": {"seq_idx": _IDS},
            "options": {"silu": silu},
            "parameters": {"has_seq_idx": True},
        }
        for silu in (False, True)
    ),
)
