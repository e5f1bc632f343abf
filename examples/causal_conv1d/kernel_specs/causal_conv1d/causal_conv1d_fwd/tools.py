"""Hooks of the tools for causal_conv1d_fwd."""

from __future__ import annotations

from typing import Any

from kernelmint.tools.bench import Call, Contender, Inputs

__all__ = ["CASES", "contenders"]

# Whole vectors and not, less and more than a thread block's 1,024 elements.
CASES = tuple(
    {
        "sizes": {"B": 2, "D": 3, "L": length},
        "options": {"silu": silu},
        "parameters": {"vectorised": length % 8 == 0},
    }
    for length in (1, 8, 1064, 1065)
    for silu in (False, True)
)


def _upstream(problem: Any, inputs: Inputs) -> Call:
    from causal_conv1d import causal_conv1d_fn

    x, weight, bias = (inputs.get(name) for name in ("x", "weight", "bias"))
    activation = "silu" if inputs.get("silu") else None
    return lambda: causal_conv1d_fn(x, weight, bias, activation=activation)


contenders = {"causal-conv1d": Contender(_upstream, "cuda", "causal-conv1d", "causal_conv1d")}
