"""Hooks of the tools for causal_conv1d_channellast_bwd."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

__all__ = ["CASES"]

_CHANNELS = 72
_MANY = 150  # several thread blocks

# An index below 0 is padding: y is 0 there, and its gradient has no part in the others. Upstream's
# kernels add it up, so that the gradient has to be 0, too, as it is where a loss leaves padding
# out. Those for the CPU are held to any.
_IDS = [[0] * 5 + [1] * 2 + [2] * 100 + [5] * 43, [7] * 1 + [3] * 149]
_PADDED = [[0] * 5 + [1] * 2 + [2] * 100 + [-1] * 43, [-1] * 2 + [7] * 1 + [3] * 147]


def _dy() -> list[list[list[float]]]:
    """Makes a gradient of y that is 0 at padding."""
    draw = random.Random(0).gauss
    return [
        [[draw(0, 1) if sequence >= 0 else 0.0 for _ in range(_CHANNELS)] for sequence in row]
        for row in _PADDED
    ]


def _cases() -> Iterator[dict[str, Any]]:
    # Fewer elements than states; several thread blocks along both; sequences, and padding.
    calls: tuple[tuple[int, dict[str, Any], dict[str, Any]], ...] = (
        (1, {}, {"has_seq_idx": False}),
        (_MANY, {}, {"has_seq_idx": False}),
        (_MANY, {"seq_idx": _IDS}, {"has_seq_idx": True}),
        (_MANY, {"seq_idx": _PADDED, "dy": _dy()}, {"has_seq_idx": True}),
        (_MANY, {"seq_idx": _PADDED}, {"chunk": None}),  # no kernel for a GPU has it
    )
    for (length, values, parameters), silu, deterministic in itertools.product(
        calls, (False, True), (False, True)
    ):
        yield {
            "sizes": {"B": 2, "D": _CHANNELS, "L": length},
            "values": values,
            "options": {
                "silu": silu,
                "deterministic": deterministic,
                "return_dbias": True,
                "return_dinitial_states": True,
            },
            "parameters": {"with_silu": silu, "in_order": deterministic, **parameters},
        }


CASES = tuple(_cases())
