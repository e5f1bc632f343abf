"""Hooks of the tools for causal_conv1d_update."""

from __future__ import annotations

__all__ = ["CASES"]

# Fewer and more new elements than are kept; a state anywhere, and none; where a ring begins.
_SIZES = {"D": 70, "S": 5}

CASES = (
    *(
        {
            "sizes": {**_SIZES, "B": 2, "N": 2, "L": length},
            "options": {"silu": silu},
            "parameters": {"circular": False},
        }
        for length in (1, 9)
        for silu in (False, True)
    ),
    {
        "sizes": {**_SIZES, "B": 3, "N": 4, "L": 2},
        "values": {"conv_state_indices": [3, -1, 0]},
        "parameters": {"circular": False},
    },
    *(
        {
            "sizes": {**_SIZES, "B": 2, "N": 2, "L": length},
            "values": {"cache_seqlens": [0, 13]},
            "parameters": {"circular": True},
        }
        for length in (1, 4)
    ),
)
