"""The oracle of flash_attn_forward, in fp64, without dropout."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..attention import OPTIONS, attention, sequences
from ..cases import inputs as tuning_inputs

__all__ = ["forward", "tuning_inputs"]


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    seqused_k: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Calls `attention` for each sequence: q [B, Sq, H, D], or [1, total, H, D] with
    `cu_seqlens_q`."""
    batch = len(q) if cu_seqlens_q is None else len(cu_seqlens_q) - 1
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    lse = out.new_full((len(q), q.shape[2], q.shape[1]), math.inf)
    options = {name: options[name] for name in OPTIONS if name in options}
    for b, ((i, rows), (j, keys)) in enumerate(sequences(batch, q, k, cu_seqlens_q, cu_seqlens_k)):
        begin = 0 if leftpad_k is None else int(leftpad_k[b])
        end = keys.stop if seqused_k is None else keys.start + int(seqused_k[b])
        used = slice(keys.start + begin, end)
        slopes = None if alibi_slopes is None else alibi_slopes[min(b, len(alibi_slopes) - 1)]
        results = attention(q[i, rows], k[j, used], v[j, used], slopes=slopes, **options)
        out[i, rows], lse[i, :, rows] = results
    return out, lse
