"""Hooks of flash_backward for the tools."""

from __future__ import annotations

from functools import partial

from ...tools.contenders import GRADIENTS as contenders
from ...tools.problems import Gradients, equal_sequences
from .debug import main as debug

__all__ = ["CASES", "RACE_CASES", "contenders", "debug", "problems"]


def _case(heads: int, kv_heads: int, seq_len_q: int, seq_len_k: int) -> dict[str, object]:
    """Returns a case. A random log-sum-exp would make probabilities far above 1, and gradients
    beyond fp16's range."""
    sizes = {"B": 2, "Sq": seq_len_q, "H": heads, "Sk": seq_len_k, "Hk": kv_heads}
    return {"sizes": sizes, "values": {"lse": (((6.0,) * seq_len_q,) * heads,) * 2}}


_LONG, _SHORT = _case(4, 2, 170, 150), _case(2, 2, 60, 150)
CASES = (_LONG,)
# racecheck reports the next round of a ring of buffers, which barriers order: the short sequences
# have one round. initcheck does not see the bulk copies that store dQ, which only deterministic
# kernels do if there is one block of queries.
RACE_CASES = (
    {**_LONG, "without": ("racecheck", "initcheck")},
    {**_SHORT, "parameters": {"deterministic": False}},
    {**_SHORT, "parameters": {"deterministic": True}, "without": ("initcheck",)},
)

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
