"""What flash_decode computes, in PyTorch: the fp64 oracle."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    block_table: Tensor | None = None,
    seqused_k: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    s_aux: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    window_left: int = -1,
    window_right: int = 0,
) -> tuple[Tensor, Tensor]:
    """Attention of few queries over caches in fp64, one batch entry after the other.

    Query i of Sq is at key `length - Sq + i` of its cache, where `length` is seqused_k or all that
    the cache holds. Its scores are softcap(softmax_scale * q k^T) - slope * distance, over the keys
    of [leftpad_k, length) that its window holds; a sink is one more score, without a value.

    Args:
        q: [B, Sq, H, D] of any floating dtype.
        k_cache: [B, P, Hk, D], or with `block_table` pages [N, P, Hk, D].
        v_cache: [B, P, Hk, Dv] or [N, P, Hk, Dv].
        block_table: the pages of each batch entry, in order, [B, pages].
        seqused_k: how many keys of each cache there are, [B].
        leftpad_k: how many of these, at the front, are padding, [B].
        s_aux: sinks, [H].
        alibi_slopes: [B, H].
        softmax_scale: the factor on q k^T; D ** -0.5 if None.
        softcap: scores become softcap * tanh(score / softcap); 0: as they are.
        window_left, window_right: keys that a query sees before and after its own; -1: all.

    Returns:
        o, [B, Sq, H, Dv], and lse, [B, H, Sq], in fp64. A row that sees nothing has o = 0, and
        without a sink lse = -inf.
    """
    batch, seq_len_q, heads, head_dim = q.shape
    group = heads // k_cache.shape[2]
    scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
    o = q.new_zeros(batch, seq_len_q, heads, v_cache.shape[3], dtype=torch.float64)
    lse = q.new_zeros(batch, heads, seq_len_q, dtype=torch.float64)
    for b in range(batch):
        pages = [b] if block_table is None else block_table[b]
        keys, values = (t[pages].flatten(0, 1) for t in (k_cache, v_cache))
        length = len(keys) if seqused_k is None else int(seqused_k[b])
        first = 0 if leftpad_k is None else int(leftpad_k[b])
        keys, values = (  # [H, keys, D]
            t[first:length].double().transpose(0, 1).repeat_interleave(group, 0)
            for t in (keys, values)
        )
        columns = torch.arange(first, length, device=q.device)
        own = torch.arange(seq_len_q, device=q.device)[:, None] + length - seq_len_q
        hidden = torch.zeros(seq_len_q, len(columns), dtype=torch.bool, device=q.device)
        if window_left >= 0:
            hidden |= columns < own - window_left
        if window_right >= 0:
            hidden |= columns > own + window_right
        scores = scale * (q[b].double().transpose(0, 1) @ keys.transpose(1, 2))
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        if alibi_slopes is not None:
            scores = scores - alibi_slopes[b, :, None, None].double() * (own - columns).abs()
        scores = scores.masked_fill(hidden, -math.inf)
        sinks = scores.new_full((heads, seq_len_q, 1), -math.inf)
        if s_aux is not None:
            sinks = s_aux.double()[:, None, None].expand(sinks.shape)
        lse[b] = torch.logsumexp(torch.cat([scores, sinks], 2), 2)
        seen = torch.where(lse[b].isneginf(), 0.0, lse[b])[..., None]
        o[b] = ((scores - seen).exp() @ values).transpose(0, 1)
    return o, lse
