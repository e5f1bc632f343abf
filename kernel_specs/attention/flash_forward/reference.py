"""What flash_forward computes, in PyTorch: the fp64 oracle, and the algorithm block by block.

The algorithm is FlashAttention's (Dao et al. 2022, arXiv:2205.14135, algorithm 1) in the loop order
of FlashAttention-2 (Dao 2023, arXiv:2307.08691, algorithm 1): one block of queries stays, blocks of
keys and values pass by, and an online softmax keeps a running maximum M and sum L of every row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

_SCORES_AT_ONCE = 2**25  # fp64 scores held at one time: 256 MiB


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    return_lse: bool = False,
) -> Any:
    """softmax(scale * q k^T) v in fp64, the definition itself: no tiles, no online softmax.

    Args:
        q: [B, Sq, H, D] of any floating dtype, on any device.
        k: [B, Sk, Hk, D]; query head h uses key head h // (H // Hk).
        v: [B, Sk, Hk, D].
        causal: query i sees keys 0 to i + Sk - Sq (aligned bottom-right, as FlashAttention >= 2.1).
        scale: the factor on q k^T; D ** -0.5 when None.
        return_lse: also return the log-sum-exp of every row of scaled scores.

    Returns:
        o: [B, Sq, H, D] fp64, and if asked for lse: [B, H, Sq] fp64, natural logarithm. A row
        that sees no key has o = 0 and lse = -inf.

    Raises:
        ValueError: H is not a multiple of Hk.
    """
    batch, seq_len_q, heads, head_dim = q.shape
    seq_len_k, kv_heads = k.shape[1], k.shape[2]
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads cannot share {kv_heads} key/value heads evenly")
    if scale is None:
        scale = head_dim**-0.5
    group = heads // kv_heads
    # Query heads by the key head they share: [B, Hk, group, Sq, D] against [B, Hk, 1, Sk, D].
    queries = q.double().transpose(1, 2).reshape(batch, kv_heads, group, seq_len_q, head_dim)
    keys, values = (t.double().transpose(1, 2).unsqueeze(2) for t in (k, v))
    o = torch.empty_like(queries, memory_format=torch.contiguous_format)
    lse = o.new_empty(o.shape[:-1])
    columns = torch.arange(seq_len_k, device=q.device)
    rows_at_once = max(1, _SCORES_AT_ONCE // max(1, batch * heads * seq_len_k))
    for start in range(0, seq_len_q, rows_at_once):
        rows = slice(start, min(start + rows_at_once, seq_len_q))
        scores = scale * (queries[..., rows, :] @ keys.transpose(-1, -2))
        if causal:
            last_seen = torch.arange(rows.start, rows.stop, device=q.device) + seq_len_k - seq_len_q
            scores.masked_fill_(columns > last_seen[:, None], -math.inf)
        lse[..., rows] = torch.logsumexp(scores, -1)
        seen = torch.where(lse[..., rows].isneginf(), 0.0, lse[..., rows])  # exp(-inf - 0) = 0
        o[..., rows, :] = (scores - seen[..., None]).exp() @ values
    o = o.flatten(1, 2).transpose(1, 2)
    return (o, lse.flatten(1, 2)) if return_lse else o


class Intermediate(NamedTuple):
    """One tensor of the algorithm at one block of keys; block is -1 for what follows the loop."""

    block: int
    name: str
    value: Tensor


def simulate(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    B_r: int,
    B_c: int,
    query_block: int = 0,
    causal: bool = False,
    scale: float | None = None,
    fused: bool = True,
    slack: float = 0.0,
) -> Iterator[Intermediate]:
    """Every intermediate of one block of queries, in the order in which a kernel meets them.

    K and V are split into blocks of B_c rows, walked from the last that the queries see to the
    first. For each block, in this order:

        Q              [B_r, D]    the queries; rows past Sq are 0
        K              [B_c, D]    the keys; rows past Sk are 0
        S_pre_scaling  [B_r, B_c]  Q K^T, before scale and mask
        M              [B_r]       running maximum of the scores seen up to and with this block;
                                   -inf for rows that see none of its keys or of those before
        L              [B_r]       running sum of exponentials, relative to M
        P              [B_r, B_c]  exponentials, relative to M; 0 if masked
        V              [B_c, D]    the values; rows past Sk are 0
        O_scale        [B_r]       what O and the old L are multiplied by; 0 in the first block
        O              [B_r, D]    running output, relative to M, not yet divided by L

    and after the last block, as block -1, O_final [B_r, D] = O / L; 0 for rows that see no key.

    The arithmetic is fp64, but for one rounding that belongs to the algorithm as kernels run it: P
    is rounded to the inputs' dtype, since the second product takes it in that dtype. L sums the
    exponentials before that rounding.

    Args:
        q: [Sq, D], one head of one batch entry.
        k: [Sk, D], the key head that serves it.
        v: [Sk, D].
        B_r: query rows of a block.
        B_c: key/value rows of a block.
        query_block: which block of queries; rows query_block * B_r and on.
        causal: query i sees keys 0 to i + Sk - Sq.
        scale: the factor on q k^T; D ** -0.5 when None.
        fused: M is the maximum of the unscaled scores and exponentials are
            exp2(scale * log2(e) * (S - M)), one FMA and exp2 each; positive scales only. Otherwise
            M is the maximum of scale * S and exponentials are exp(scale * S - M).
        slack: M stays what it is until exponentials would exceed 2 ** slack in the fused form, or
            exp(slack) in the other; 0: it is the maximum itself.

    Yields:
        Intermediate(block, name, value), value in fp64 on the inputs' device.

    Raises:
        ValueError: query_block lies past Sq, or fused with a scale that is not positive.
    """
    (seq_len_q, head_dim), seq_len_k = q.shape, k.shape[0]
    first_row = query_block * B_r
    if not 0 <= first_row < seq_len_q:
        raise ValueError(
            f"query block {query_block} starts at row {first_row}; there are {seq_len_q} rows"
        )
    if scale is None:
        scale = head_dim**-0.5
    if fused and scale <= 0:
        raise ValueError(f"the fused form needs a positive scale, not {scale}: pass fused=False")

    def rows_of(tensor: Tensor, start: int, count: int) -> Tensor:
        rows = tensor[start : start + count].double()
        return torch.cat([rows, rows.new_zeros(count - rows.shape[0], rows.shape[1])])

    row = first_row + torch.arange(B_r, device=q.device)
    seen = torch.clamp(row + seq_len_k - seq_len_q + 1 if causal else row * 0 + seq_len_k, 0)
    seen = torch.where(row < seq_len_q, torch.clamp(seen, max=seq_len_k), 0)  # keys of each row
    q_tile = rows_of(q, first_row, B_r)
    m = q_tile.new_full((B_r,), -math.inf)
    l_sum = q_tile.new_zeros(B_r)
    o = q_tile.new_zeros(B_r, head_dim)
    exponential = torch.exp2 if fused else torch.exp
    factor = scale * math.log2(math.e) if fused else 1.0  # from a difference of M's to an exponent

    for block in reversed(range(math.ceil(int(seen.max()) / B_c))):
        k_tile, v_tile = rows_of(k, block * B_c, B_c), rows_of(v, block * B_c, B_c)
        s_raw = q_tile @ k_tile.T
        column = block * B_c + torch.arange(B_c, device=q.device)
        s = s_raw if fused else scale * s_raw
        s = s.masked_fill(column >= seen[:, None], -math.inf)
        greatest = s.max(-1).values
        grew = factor * (greatest - m) > slack  # from -inf, by more than any slack
        m_old, m = m, torch.where(grew, greatest, m)
        m_finite = torch.where(m.isneginf(), 0.0, m)  # a row that has seen no key: exp(-inf) = 0
        o_scale = exponential(factor * (m_old - m_finite))
        p = exponential(factor * (s - m_finite[:, None]))
        l_sum = o_scale * l_sum + p.sum(-1)
        p = p.to(q.dtype).double()
        o = o_scale[:, None] * o + p @ v_tile
        for name, value in (
            ("Q", q_tile),
            ("K", k_tile),
            ("S_pre_scaling", s_raw),
            ("M", m),
            ("L", l_sum),
            ("P", p),
            ("V", v_tile),
            ("O_scale", o_scale),
            ("O", o),
        ):
            yield Intermediate(block, name, value)
    yield Intermediate(-1, "O_final", torch.where(l_sum > 0, 1 / l_sum, 0.0)[:, None] * o)
