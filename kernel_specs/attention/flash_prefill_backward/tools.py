"""Hooks of flash_prefill_backward for the tools."""

from __future__ import annotations

from functools import partial

from ..tools.contenders import PACKED_GRADIENTS as contenders
from ..tools.problems import PackedGradients, packed

__all__ = ["CASES", "RACE_CASES", "contenders", "problems"]

problems = partial(packed, PackedGradients)


def _case(heads: int, kv_heads: int, ends: tuple[int, ...]) -> dict[str, object]:
    """Returns a case of packed sequences, an empty one among them, with log-sum-exps that make no
    probability above 1."""
    total = ends[-1]
    return {
        "sizes": {"H": heads, "Hk": kv_heads, "D": 64, "Dv": 64, "Cq": 4, "Ck": 4, "Nq": 1,
                  "Tq": total, "Nk": 1, "Tk": total + 20},
        "values": {
            "cu_seqlens_q": (0, *ends),
            "cu_seqlens_k": (0, ends[0] + 10, ends[1] + 20, total + 20),
            "lse": (((6.0,) * total,) * heads,),
            "s_aux": (0.5, -1.0, 0.0, 2.0)[:heads],
        },
        "options": {"return_ds_aux": True, "window_right": 0},
    }  # fmt: skip


CASES = (_case(4, 2, (70, 70, 150)),)
# One round of each ring, and stores by bulk copies, as flash_backward's.
RACE_CASES = (
    {**CASES[0], "without": ("racecheck", "initcheck")},
    {**_case(2, 2, (30, 30, 60)), "parameters": {"deterministic": False}},
    {**_case(2, 2, (30, 30, 60)), "parameters": {"deterministic": True}, "without": ("initcheck",)},
)
