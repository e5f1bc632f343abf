"""What the tools know of causal_conv1d_channellast_bwd beyond its spec and its reference."""

from __future__ import annotations

from typing import Any

__all__ = ["CASES"]

# Several thread blocks along both, fewer elements than states, and none at the end.
_IDS = [[0] * 5 + [1] * 2 + [2] * 100 + [-1] * 43, [7] * 1 + [3] * 149]


def _case(length: int, silu: bool, deterministic: bool, sequences: bool) -> dict[str, Any]:
    return {
        "sizes": {"B": 2, "D": 72, "L": length},
        "values": {"seq_idx": _IDS} if sequences else {},
        "options": {
            "silu": silu,
            "deterministic": deterministic,
            "return_dbias": True,
            "return_dinitial_states": True,
        },
        "parameters": {
            "with_silu": silu,
            "in_order": deterministic,
            "has_seq_idx": sequences,
        },
    }


CASES = tuple(
    _case(length, silu, deterministic, sequences)
    for length in (1, 150)
    for silu in (False, True)
    for deterministic in (False, True)
    for sequences in (False, True)
    if length == len(_IDS[0]) or not sequences
)
