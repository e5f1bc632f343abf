"""The oracle of flash_attn_split, in fp64: the number of splits is not seen."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..attention import OPTIONS, attention, sequences
from ..cases import inputs as tuning_inputs

__all__ = ["split", "tuning_inputs"]


def split(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    cache_seqlens: Tensor | None = None,
    seqused_k: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    block_table: Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Calls `attention` for each sequence: q [B, Sq, H, D], or [1, total, H, D] with
    `cu_seqlens_q`; k and v [B, Sk, Hk, D], a cache of them, or pages with `block_table`."""
    batch = len(q) if cu_seqlens_q is None else len(cu_seqlens_q) - 1
    if block_table is not None:
        k, v = (t[block_table.long()].flatten(1, 2) for t in (k, v))
    if cache_batch_idx is not None:
        k, v = k[cache_batch_idx.long()], v[cache_batch_idx.long()]
    in_cache = cu_seqlens_k if block_table is None else None
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    lse = out.new_full((len(q), q.shape[2], q.shape[1]), math.inf)
    options = {name: options[name] for name in OPTIONS if name in options}
    for b, ((i, rows), (j, keys)) in enumerate(sequences(batch, q, k, cu_seqlens_q, in_cache)):
        begin, length = 0 if leftpad_k is None else int(leftpad_k[b]), keys.stop - keys.start
        if cache_seqlens is not None:
            length = int(cache_seqlens[b])
        elif block_table is not None and cu_seqlens_k is not None:
            length = int(cu_seqlens_k[b + 1] - cu_seqlens_k[b])
        if seqused_k is not None:
            length = int(seqused_k[b])
        used = slice(keys.start + begin, keys.start + length)
        slopes = None if alibi_slopes is None else alibi_slopes[min(b, len(alibi_slopes) - 1)]
        out[i, rows], lse[i, :, rows] = attention(
            q[i, rows], k[j, used], v[j, used], slopes=slopes, **options
        )
    return out, lse
