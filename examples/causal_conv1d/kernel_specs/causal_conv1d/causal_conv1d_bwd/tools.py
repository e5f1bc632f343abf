"""Hooks of the tools for causal_conv1d_bwd."""

from __future__ import annotations

__all__ = ["CASES"]

# Whole vectors and not, less and more than a thread block's 1,024 elements.
CASES = tuple(
    {
        "sizes": {"B": 2, "D": 3, "L": length},
        "options": {"silu": silu, "deterministic": deterministic, "return_dbias": True},
        "parameters": {
            "vectorised": length % 8 == 0,
            "with_silu": silu,
            "in_order": deterministic,
        },
    }
    for length in (1, 8, 1064, 1065)
    for silu in (False, True)
    for deterministic in (False, True)
)
