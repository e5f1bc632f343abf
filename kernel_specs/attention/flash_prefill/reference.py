"""What flash_prefill computes, in PyTorch: the fp64 oracle."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from typing import Any

import torch
from torch import Tensor


def prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    block_table: Tensor | None = None,
    s_aux: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    window_left: int = -1,
    window_right: int = -1,
) -> tuple[Tensor, Tensor]:
    """Attention of sequences of any lengths in fp64, one after the other.

    Query i of a sequence's n is at key `length - n + i` of it, where `length` is what is used of
    its keys. Its scores are softcap(softmax_scale * q k^T) - slope * distance, over the keys of
    [leftpad_k, length) that its window holds; a sink is one more score, without a value.

    Args:
        q: [B, Sq, H, D], or with `cu_seqlens_q` [1, total, H, D], of any floating dtype.
        k: [B, Sk, Hk, D], with `cu_seqlens_k` [1, total, Hk, D], with `block_table` pages.
        v: as k, of head dimension Dv.
        cu_seqlens_q, cu_seqlens_k: where sequences begin, and where the last one ends, [B + 1].
        seqused_q, seqused_k: how many rows of each sequence, at the front, are used, [B].
        leftpad_k: how many of the keys, at the front, are padding, [B].
        block_table: the pages of each sequence, in order, [B, pages].
        s_aux: sinks, [H].
        alibi_slopes: [B, H].
        softmax_scale: the factor on q k^T; D ** -0.5 if None.
        softcap: scores become softcap * tanh(score / softcap); 0: as they are.
        window_left, window_right: keys that a query sees before and after its own; -1: all.

    Returns:
        o, like q with head dimension Dv, and lse, [B or 1, H, Sq or total], in fp64. A row that
        sees no key has o = 0, and without a sink lse = -inf; a row of no sequence 0 and -inf.
    """
    heads, head_dim = q.shape[2:]
    group = heads // k.shape[2]
    scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
    batch = len(q) if cu_seqlens_q is None else len(cu_seqlens_q) - 1
    o = q.new_zeros(*q.shape[:3], v.shape[3], dtype=torch.float64)
    lse = q.new_full((q.shape[0], heads, q.shape[1]), -math.inf, dtype=torch.float64)
    for b in range(batch):
        entry, rows = _rows(q, b, cu_seqlens_q, seqused_q)
        if block_table is None:
            of, keys_at = _rows(k, b, cu_seqlens_k, seqused_k)
            keys, values = k[of, keys_at], v[of, keys_at]
        else:
            keys, values = (t[block_table[b]].flatten(0, 1) for t in (k, v))
            used = len(keys) if seqused_k is None else int(seqused_k[b])
            keys, values = keys[:used], values[:used]
        queries, length = rows.stop - rows.start, len(keys)
        first = 0 if leftpad_k is None else int(leftpad_k[b])
        keys, values = (  # [H, keys, D]
            t[first:].double().transpose(0, 1).repeat_interleave(group, 0) for t in (keys, values)
        )
        columns = torch.arange(first, max(first, length), device=q.device)
        own = torch.arange(queries, device=q.device)[:, None] + length - queries
        hidden = torch.zeros(queries, len(columns), dtype=torch.bool, device=q.device)
        if window_left >= 0:
            hidden |= columns < own - window_left
        if window_right >= 0:
            hidden |= columns > own + window_right
        scores = scale * (q[entry, rows].double().transpose(0, 1) @ keys.transpose(1, 2))
        if 0 < softcap < math.inf:
            scores = softcap * torch.tanh(scores / softcap)
        if alibi_slopes is not None:
            scores = scores - alibi_slopes[b, :, None, None].double() * (own - columns).abs()
        scores = scores.masked_fill(hidden, -math.inf)
        sinks = scores.new_full((heads, queries, 1), -math.inf)
        if s_aux is not None:
            sinks = s_aux.double()[:, None, None].expand(sinks.shape)
        found = torch.logsumexp(torch.cat([scores, sinks], 2), 2)
        lse[entry, :, rows] = found
        seen = torch.where(found.isneginf(), 0.0, found)[..., None]
        o[entry, rows] = ((scores - seen).exp() @ values).transpose(0, 1)
    return o, lse


def _rows(
    of: Tensor, sequence: int, cu_seqlens: Tensor | None, seqused: Tensor | None
) -> tuple[int, slice]:
    """Where the rows of a sequence are that are used: the batch entry, and which of its rows."""
    begin, end = 0, of.shape[1]
    if cu_seqlens is not None:
        begin, end = int(cu_seqlens[sequence]), int(cu_seqlens[sequence + 1])
    if seqused is not None:
        end = begin + int(seqused[sequence])
    return (0 if cu_seqlens is not None else sequence), slice(begin, end)


_RATIO = 16.0  # of the longest and the shortest of the sequences that are measured


def tuning_inputs(
    sizes: Mapping[str, int],
    parameters: Mapping[str, Any],
    generator: torch.Generator,
    given: Container[str],
) -> dict[str, Tensor]:
    """What may not be random, if it is given: where packed sequences begin, whose lengths are in a
    geometric row; how many rows are used, spread evenly up to all; and pages. All in an order that
    is none. All else is normally distributed."""
    device = generator.device

    def shuffled(count: int) -> Tensor:
        return torch.randperm(count, generator=generator, device=device)

    count = sizes["Cq"] - 1 if "cu_seqlens_q" in given else sizes["Nq"]
    order, pages = shuffled(count), sizes.get("pages", 1)
    shares = (_RATIO ** (order.double() / max(1, count - 1))).cumsum(0)
    ends = {
        name: (rows * shares / shares[-1]).round().int()
        for name, rows in (("cu_seqlens_q", sizes["Tq"]), ("cu_seqlens_k", sizes["Tk"]))
        if name in given
    }
    made = {name: torch.cat([end.new_zeros(1), end]) for name, end in ends.items()}
    longest = {"seqused_q": sizes["Tq"], "seqused_k": sizes["Tk"]}
    if "block_table" in given:
        longest["seqused_k"] *= pages
        made["block_table"] = shuffled(sizes["Nk"])[: count * pages].reshape(count, pages).int()
    for used, packed in (("seqused_q", "cu_seqlens_q"), ("seqused_k", "cu_seqlens_k")):
        if used in given:
            most = made[packed].diff() if packed in given else longest[used]
            made[used] = (most * (shuffled(count) + 1) // count).int()
    return made
