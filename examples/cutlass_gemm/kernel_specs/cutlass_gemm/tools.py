"""Hooks of the tools for cutlass_gemm."""

from __future__ import annotations

__all__ = ["CASES"]

N, K = 136, 264  # no tile divides them

CASES = tuple(
    {
        "parameters": {"trans_b": trans_b, "with_bias": with_bias},
        "sizes": {"M": 203, "K": K, "R": N if trans_b else K, "S": K if trans_b else N},
        "given": ("bias",) if with_bias else (),
    }
    for trans_b in (False, True)
    for with_bias in (False, True)
)
