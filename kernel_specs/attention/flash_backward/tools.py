"""Hooks of flash_backward for the tools."""

from __future__ import annotations

from functools import partial

from ..tools.contenders import GRADIENTS as contenders
from ..tools.problems import Gradients, equal_sequences

__all__ = ["CASES", "contenders", "problems"]

# A random log-sum-exp would make probabilities far above 1, and gradients beyond fp16's range.
_CASE = {"B": 2, "Sq": 170, "H": 4, "Sk": 150, "Hk": 2}
CASES = ({"sizes": _CASE, "values": {"lse": (((6.0,) * 170,) * 4,) * 2}},)

problems = partial(
    equal_sequences,
    Gradients,
    {
        "cuda": ("16x1024", "8x2048", "4x4096", "2x8192", "1x16384"),
        "cpu": ("1x1024", "1x2048", "1x4096"),
    },
    dtype=("f32", "bf16"),
    d_head=(64, 128),
)
