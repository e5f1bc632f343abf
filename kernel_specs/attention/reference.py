"""The fp64 oracles of attention's families, and flash_forward's and flash_backward's algorithms
block by block.

The algorithm is FlashAttention's (Dao et al. 2022, arXiv:2205.14135, algorithm 1) in the loop order
of FlashAttention-2 (Dao 2023, arXiv:2307.08691, algorithm 1): one block of queries stays, blocks of
keys and values pass by, and an online softmax keeps a running maximum M and sum L of every row.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Container, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

_SCORES_AT_ONCE = 2**25  # fp64 scores held at one time: 256 MiB
_RATIO = 16.0  # the longest sequence of a measurement to its shortest


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    return_lse: bool = False,
) -> Any:
    """Computes softmax(scale * q k^T) v in fp64: flash_forward's, a batch of equal lengths.

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
    o, lse = prefill(q, k, v, softmax_scale=scale, window_right=0 if causal else -1)
    return (o, lse) if return_lse else o


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
    """Computes flash_decode's attention of few queries over caches: `prefill`'s, of a batch whose
    keys are k_cache, [B, P, Hk, D], or with `block_table` pages, [N, P, Hk, D], and whose causal
    mask is `window_right` 0."""
    return prefill(
        q, k_cache, v_cache, block_table=block_table, seqused_k=seqused_k, leftpad_k=leftpad_k,
        s_aux=s_aux, alibi_slopes=alibi_slopes, softmax_scale=softmax_scale, softcap=softcap,
        window_left=window_left, window_right=window_right,
    )  # fmt: skip


def prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rng: Tensor | None = None,
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
    dropout_p: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Computes flash_prefill's attention of sequences of any lengths in fp64, one after the other,
    or, with `rng`, flash_dropout's.

    Query i of a sequence's n is at key `length - n + i` of it, where `length` is what is used of
    its keys. Its scores are softcap(softmax_scale * q k^T) - slope * distance, over the keys of
    [leftpad_k, length) that its window holds; a sink is one more score, without a value.

    Args:
        q: [B, Sq, H, D], or with `cu_seqlens_q` [1, total, H, D], of any floating dtype.
        k: [B, Sk, Hk, D], with `cu_seqlens_k` [1, total, Hk, D], with `block_table` pages.
        v: as k, of head dimension Dv.
        rng: the seed and the offset of `kept`, [2]; None: nothing is dropped.
        cu_seqlens_q, cu_seqlens_k: where sequences begin, and where the last one ends, [B + 1].
        seqused_q, seqused_k: how many rows of each sequence, at the front, are used, [B].
        leftpad_k: how many of the keys, at the front, are padding, [B].
        block_table: the pages of each sequence, in order, [B, pages].
        s_aux: sinks, [H].
        alibi_slopes: [B, H].
        softmax_scale: the factor on q k^T; D ** -0.5 if None.
        softcap: scores become softcap * tanh(score / softcap); 0: as they are.
        window_left, window_right: keys that a query sees before and after its own; -1: all.
        dropout_p: how probably a probability is dropped; the others are divided by 1 - dropout_p.

    Returns:
        o, like q with head dimension Dv, and lse, [B or 1, H, Sq or total], in fp64, lse of all
        scores, whatever is dropped. A row that
        sees no key has o = 0, and without a sink lse = -inf; a row of no sequence 0 and -inf.

    Raises:
        ValueError: H is not a multiple of Hk.
    """
    heads, head_dim = q.shape[2:]
    if heads % k.shape[2]:
        raise ValueError(f"{heads} query heads cannot share {k.shape[2]} key/value heads evenly")
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
        rows_at_once = max(1, _SCORES_AT_ONCE // max(1, heads * len(columns)))
        for start in range(rows.start, rows.stop, rows_at_once):
            part = slice(start, min(start + rows_at_once, rows.stop))
            own = torch.arange(part.start, part.stop, device=q.device)[:, None] - rows.start
            own = own + length - queries  # the key at which each query is
            hidden = torch.zeros(len(own), len(columns), dtype=torch.bool, device=q.device)
            if window_left >= 0:
                hidden |= columns < own - window_left
            if window_right >= 0:
                hidden |= columns > own + window_right
            scores = scale * (q[entry, part].double().transpose(0, 1) @ keys.transpose(1, 2))
            if 0 < softcap < math.inf:
                scores = softcap * torch.tanh(scores / softcap)
            if alibi_slopes is not None:
                distance = (own - columns).abs()
                scores = scores - alibi_slopes[b, :, None, None].double() * distance
            scores = scores.masked_fill(hidden, -math.inf)
            sinks = scores.new_full((heads, len(own), 1), -math.inf)
            if s_aux is not None:
                sinks = s_aux.double()[:, None, None].expand(sinks.shape)
            sums = torch.logsumexp(torch.cat([scores, sinks], 2), 2)
            lse[entry, :, part] = sums
            seen = torch.where(sums.isneginf(), 0.0, sums)[..., None]  # exp(-inf - 0) = 0
            probabilities = (scores - seen).exp()
            if rng is not None:
                queries_of = torch.arange(part.start, part.stop, device=q.device) - rows.start
                factors = _kept(rng, dropout_p, b, heads, queries_of, columns)
                probabilities = factors * probabilities
            o[entry, part] = _seen_product(probabilities, values, ~hidden).transpose(0, 1)
    return o, lse


def kept(rng: Tensor, dropout_p: float, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Says which probabilities flash_dropout keeps, as ../attention/dropout.h defines: bool, of the
    shape to which the three integer tensors are broadcast.

    Args:
        rng: the seed and the offset, int64, [2].
        dropout_p: how probably a probability is dropped.
        head: the sequence's number times the number of heads, plus the head's.
        query: the query's place in its sequence.
        key: the key's place in its sequence, padding included.
    """
    seed, offset = rng.tolist()
    low = 0xFFFFFFFF
    first = offset + head
    unit_of_keys = key // 16 * 4 + key % 8 // 2
    unit_of_queries = query // 16 * 8 + query % 8
    counter = (first & low, (first >> 32) & low, unit_of_keys, unit_of_queries)
    shape = (head + query + key).shape
    drawn = philox(counter, (seed & low, seed >> 32 & low))
    words = torch.stack([word.expand(shape) for word in drawn])
    number = (2 * (query // 8 % 2) + key // 8 % 2).expand(shape)
    bits = words.gather(0, number[None])[0] >> 16 * (key % 2) & 0xFFFF
    return bits >= (torch.tensor(dropout_p, dtype=torch.float32) * 65536 + 0.5).int()


def philox(counter: tuple[Tensor, ...], key: tuple[int, int]) -> tuple[Tensor, ...]:
    """Computes Philox4x32-10 (Salmon et al. 2011): four random words, of a counter of four words
    and a key of two, all of them 32 bits in int64."""
    low = 0xFFFFFFFF
    for _ in range(10):
        products = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        first, second = (product >> 32 & low for product in products)
        counter = (
            second ^ counter[1] ^ key[0], products[1] & low,
            first ^ counter[3] ^ key[1], products[0] & low,
        )  # fmt: skip
        key = key[0] + 0x9E3779B9 & low, key[1] + 0xBB67AE85 & low
    return counter


def _kept(
    rng: Tensor, dropout_p: float, sequence: int, heads: int, queries: Tensor, keys: Tensor
) -> Tensor:
    """Returns the factors of a sequence's probabilities, [heads, queries, keys]: 0 or
    1 / (1 - dropout_p)."""
    head = sequence * heads + torch.arange(heads, device=queries.device)
    are_kept = kept(rng, dropout_p, head[:, None, None], queries[:, None], keys)
    return are_kept.double() / (1 - dropout_p if dropout_p < 1 else 1)


def _seen_product(weights: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """Returns weights @ values, where only rows that see a value have it in their sums: what is not
    finite reaches no others.

    Args:
        weights: [H, M, N], 0 where a row does not see a value.
        values: [H, N, D].
        seen: [M, N].
    """
    unusual = ~values.isfinite()
    product = weights @ values.masked_fill(unusual, 0)
    for n in unusual.any(-1).any(0).nonzero().flatten().tolist():
        term = weights[:, :, n, None] * values[:, None, n]
        product += term.masked_fill(~(seen[:, n, None] & unusual[:, None, n]), 0)
    return product


def _rows(
    of: Tensor, sequence: int, cu_seqlens: Tensor | None, seqused: Tensor | None
) -> tuple[int, slice]:
    """Returns the batch entry of a sequence, and the rows of it that are used."""
    begin, end = 0, of.shape[1]
    if cu_seqlens is not None:
        begin, end = int(cu_seqlens[sequence]), int(cu_seqlens[sequence + 1])
    if seqused is not None:
        end = begin + int(seqused[sequence])
    return (0 if cu_seqlens is not None else sequence), slice(begin, end)


def attention_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    *,
    scale: float,
    causal: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes dq, dk and dv of o = softmax(scale * q k^T) v, given dout, the gradient of o.

    Args:
        dout: [B, Sq, H, D].
        q: [B, Sq, H, D].
        k: [B, Sk, Hk, D]; Hk divides H.
        v: [B, Sk, Hk, D].
        o: the output, [B, Sq, H, D].
        lse: log-sum-exp of each row of scores, [B, H, Sq], natural log; -inf without keys.
        scale: the factor on q k^T.
        causal: query i sees keys up to i + Sk - Sq.

    Returns:
        dq [B, Sq, H, D], dk and dv [B, Sk, Hk, D], in fp64.
    """
    gradients = prefill_backward(
        dout, q, k, v, o, lse, softmax_scale=scale, window_right=0 if causal else -1
    )
    return gradients[:3]


def slopes_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    rng: Tensor | None = None,
    *,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    s_aux: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    window_left: int = -1,
    window_right: int = -1,
    dropout_p: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns the gradients of q, k, v, alibi_slopes and s_aux in fp64, one sequence after the
    other.

    As FlashAttention's equations have it (Dao et al., 2022, appendix B.2): with scores S, P =
    exp(S - lse), dP = dout v^T, and D, the sum of dout o over a row, dS is P (dP - D), times the
    softcap's derivative. Dropout's factors are in dP, and in the P of dv. A sink's gradient is the
    sum of -exp(s_aux - lse) D. A slope's is that of -dS times the distance, without the softcap's
    derivative.

    Args:
        dout: [B, Sq, H, Dv], or with `cu_seqlens_q` [1, total, H, Dv].
        o: the output, like dout.
        lse: log-sum-exp of each row of scores, [B or 1, H, Sq or total], natural log.

    The other arguments: as `prefill`'s.

    Returns:
        dq, dk and dv, like q, k and v, 0 in rows of no sequence; dalibi_slopes, [B, H]; and ds_aux,
        [H].
    """
    heads, head_dim = q.shape[2:]
    group = heads // k.shape[2]
    scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
    batch = len(q) if cu_seqlens_q is None else len(cu_seqlens_q) - 1
    dq, dk, dv = (torch.zeros_like(t, dtype=torch.float64) for t in (q, k, v))
    ds_aux = q.new_zeros(heads, dtype=torch.float64)
    dalibi_slopes = q.new_zeros(batch, heads, dtype=torch.float64)
    for b in range(batch):
        entry, rows = _rows(q, b, cu_seqlens_q, seqused_q)
        of, keys_at = _rows(k, b, cu_seqlens_k, seqused_k)
        first = 0 if leftpad_k is None else int(leftpad_k[b])
        queries, length = rows.stop - rows.start, keys_at.stop - keys_at.start
        keys_at = slice(min(keys_at.start + first, keys_at.stop), keys_at.stop)
        columns = torch.arange(first, max(first, length), device=q.device)
        own = torch.arange(queries, device=q.device)[:, None] + length - queries
        hidden = torch.zeros(queries, len(columns), dtype=torch.bool, device=q.device)
        if window_left >= 0:
            hidden |= columns < own - window_left
        if window_right >= 0:
            hidden |= columns > own + window_right
        of_rows, gradients, out = (t[entry, rows].double().transpose(0, 1) for t in (q, dout, o))
        keys, values = (
            t[of, keys_at].double().transpose(0, 1).repeat_interleave(group, 0) for t in (k, v)
        )
        scores = scale * of_rows @ keys.mT
        slant = torch.ones_like(scores)
        if 0 < softcap < math.inf:
            share = torch.tanh(scores / softcap)
            scores, slant = softcap * share, 1 - share**2
        distances = (own - columns).abs()
        if alibi_slopes is not None:
            scores = scores - alibi_slopes[b, :, None, None].double() * distances
        sums = lse[entry, :, rows].double()
        sums = sums.masked_fill(sums.isneginf(), math.inf)
        probabilities = torch.exp(scores - sums[..., None])
        probabilities = probabilities.masked_fill(hidden, 0)
        row_sums = (gradients * out).sum(-1)
        factors = torch.ones_like(probabilities)
        if rng is not None:
            queries_of = torch.arange(queries, device=q.device)
            factors = _kept(rng, dropout_p, b, heads, queries_of, columns)
        products = factors * (gradients @ values.mT)
        gradient = probabilities * (products - row_sums[..., None])
        gradient = gradient.masked_fill(hidden, 0)
        dalibi_slopes[b] = -(gradient * distances).sum((1, 2))
        gradient = scale * gradient * slant.masked_fill(hidden, 0)
        dq[entry, rows] = _seen_product(gradient, keys, ~hidden).transpose(0, 1)
        of_keys = (
            _seen_product(gradient.mT, of_rows, ~hidden.mT),
            _seen_product((factors * probabilities).mT, gradients, ~hidden.mT),
        )
        for total, part in zip((dk, dv), of_keys, strict=True):
            part = part.reshape(k.shape[2], group, *part.shape[1:]).sum(1)
            total[of, keys_at] = part.transpose(0, 1)
        if s_aux is not None:
            ds_aux -= (torch.exp(s_aux.double()[:, None] - sums) * row_sums).sum(-1)
    return dq, dk, dv, dalibi_slopes, ds_aux


@functools.wraps(slopes_backward)
def prefill_backward(*tensors: Any, **options: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the same without the gradient of alibi_slopes."""
    dq, dk, dv, _, ds_aux = slopes_backward(*tensors, **options)
    return dq, dk, dv, ds_aux


class Intermediate(NamedTuple):
    """A tensor of the algorithm at one block of keys; block is -1 for what follows the loop."""

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
    """Yields every intermediate of one block of queries, in the order in which a kernel meets them.

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

    row = first_row + torch.arange(B_r, device=q.device)
    seen = torch.clamp(row + seq_len_k - seq_len_q + 1 if causal else row * 0 + seq_len_k, 0)
    seen = torch.where(row < seq_len_q, torch.clamp(seen, max=seq_len_k), 0)  # keys of each row
    q_tile = _tile(q, first_row, B_r)
    m = q_tile.new_full((B_r,), -math.inf)
    l_sum = q_tile.new_zeros(B_r)
    o = q_tile.new_zeros(B_r, head_dim)
    exponential = torch.exp2 if fused else torch.exp
    factor = scale * math.log2(math.e) if fused else 1.0  # from a difference of M's to an exponent

    for block in reversed(range(math.ceil(int(seen.max()) / B_c))):
        k_tile, v_tile = _tile(k, block * B_c, B_c), _tile(v, block * B_c, B_c)
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


class GradientIntermediate(NamedTuple):
    """A tensor of the backward at one step; head and block are -1 for what follows the steps."""

    head: int
    query_block: int
    name: str
    value: Tensor


def simulate_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    *,
    B_r: int,
    B_c: int,
    key_block: int = 0,
    causal: bool = False,
    scale: float | None = None,
    from_last: bool = False,
) -> Iterator[GradientIntermediate]:
    """Yields every intermediate of one block of keys, in the order in which a kernel meets them.

    A step is a block of B_r queries, of which at least one sees one of the keys, of one of the
    heads that share the keys: all heads have a block before the next block's turn. In each step, in
    this order:

        Q   [B_r, D]    the queries; rows past Sq are 0, and so in dO
        K   [B_c, D]    the keys; rows past Sk are 0, and so in V
        S   [B_r, B_c]  Q K^T, before scale and mask
        L   [B_r]       the log-sum-exps; inf in rows past Sq
        P   [B_r, B_c]  exp(scale S - L); 0 where a query does not see a key
        dO  [B_r, D]    the gradients of the output
        V   [B_c, D]    the values
        dP  [B_r, B_c]  dO V^T
        D   [B_r]       the sums of dO o over a row
        dS  [B_r, B_c]  P (dP - D)
        dV  [B_c, D]    P^T dO, summed over this step and the steps before
        dQ  [B_r, D]    dS K, the step's part of dq before its scale
        dK  [B_c, D]    dS^T Q, summed likewise, before its scale

    and after the last step, as head and block -1, the gradients dv and dk, [B_c, D].

    The arithmetic is fp64, but for the two roundings that belong to the algorithm as kernels run
    it: P and dS are rounded to the inputs' dtype, since the products that sum up the gradients take
    them in that dtype. dS is made of P before its rounding.

    Args:
        dout: [Sq, G, D], of the G query heads that share a key head.
        q: [Sq, G, D].
        k: [Sk, D], the key head.
        v: [Sk, D].
        o: the output, [Sq, G, D].
        lse: log-sum-exp of each row of scores, [G, Sq], natural logarithm.
        B_r: query rows of a step.
        B_c: key/value rows of a block.
        key_block: the block of keys, rows key_block * B_c and on.
        causal: query i sees keys 0 to i + Sk - Sq.
        scale: the factor on q k^T; D ** -0.5 when None.
        from_last: blocks of queries come from the last to the first.

    Raises:
        ValueError: key_block lies past Sk.
    """
    (seq_len_q, group, head_dim), seq_len_k = q.shape, k.shape[0]
    first_key = key_block * B_c
    if not 0 <= first_key < seq_len_k:
        raise ValueError(
            f"key block {key_block} starts at row {first_key}; there are {seq_len_k} rows"
        )
    if scale is None:
        scale = head_dim**-0.5
    key = first_key + torch.arange(B_c, device=q.device)
    k_tile, v_tile = _tile(k, first_key, B_c), _tile(v, first_key, B_c)
    dk, dv = torch.zeros_like(k_tile), torch.zeros_like(v_tile)
    first_block = max(0, first_key - seq_len_k + seq_len_q) // B_r if causal else 0
    blocks = range(first_block, math.ceil(seq_len_q / B_r))
    for block in reversed(blocks) if from_last else blocks:
        row = block * B_r + torch.arange(B_r, device=q.device)
        seen = row + seq_len_k - seq_len_q + 1 if causal else row * 0 + seq_len_k
        seen = torch.where(row < seq_len_q, torch.clamp(seen, 0, seq_len_k), 0)
        for head in range(group):
            q_tile, do_tile, o_tile = (_tile(t[:, head], block * B_r, B_r) for t in (q, dout, o))
            s = q_tile @ k_tile.T
            sums = s.new_full((B_r,), math.inf)
            sums[row < seq_len_q] = lse[head, row[row < seq_len_q]].double()
            p = torch.exp(scale * s - sums[:, None]).masked_fill(key >= seen[:, None], 0)
            dp = do_tile @ v_tile.T
            row_sums = (do_tile * o_tile).sum(-1)
            ds = (p * (dp - row_sums[:, None])).to(q.dtype).double()
            p = p.to(q.dtype).double()
            dv, dk = dv + p.T @ do_tile, dk + ds.T @ q_tile
            for name, value in (
                ("Q", q_tile), ("K", k_tile), ("S", s), ("L", sums), ("P", p), ("dO", do_tile),
                ("V", v_tile), ("dP", dp), ("D", row_sums), ("dS", ds), ("dV", dv),
                ("dQ", ds @ k_tile), ("dK", dk),
            ):  # fmt: skip
                yield GradientIntermediate(head, block, name, value)
    yield GradientIntermediate(-1, -1, "dv", dv)
    yield GradientIntermediate(-1, -1, "dk", scale * dk)


def _tile(tensor: Tensor, start: int, count: int) -> Tensor:
    """Returns `count` rows from the `start` on in fp64, zeros past the last one."""
    rows = tensor[start : start + count].double()
    return torch.cat([rows, rows.new_zeros(count - rows.shape[0], rows.shape[1])])


def tuning_inputs(
    sizes: Mapping[str, int],
    parameters: Mapping[str, Any],
    generator: torch.Generator,
    given: Container[str],
) -> dict[str, Tensor]:
    """Returns the inputs that may not be random, of those that are given: flash_prefill's or
    flash_decode's, whose sizes have other names. All other inputs are normally distributed.

    Packed sequences have lengths in a geometric row; used rows are spread evenly up to all; they
    and pages come in random order.
    """
    device = generator.device

    def shuffled(count: int) -> Tensor:
        return torch.randperm(count, generator=generator, device=device)

    tensors = {}
    if "P" in sizes:
        count, entries, longest = sizes["B"], sizes["N"], {"seqused_k": sizes["P"]}
    elif "Tq" in sizes:
        count = sizes["Cq"] - 1 if "cu_seqlens_q" in given else sizes["Nq"]
        entries, longest = sizes["Nk"], {"seqused_q": sizes["Tq"], "seqused_k": sizes["Tk"]}
        shares = (_RATIO ** (shuffled(count).double() / max(1, count - 1))).cumsum(0)
        for name, total in (("cu_seqlens_q", sizes["Tq"]), ("cu_seqlens_k", sizes["Tk"])):
            if name in given:
                ends = (total * shares / shares[-1]).round().int()
                tensors[name] = torch.cat([ends.new_zeros(1), ends])
    else:
        return {}
    if "block_table" in given:
        pages = sizes.get("pages", 1)
        longest["seqused_k"] *= pages
        tensors["block_table"] = shuffled(entries)[: count * pages].reshape(count, pages).int()
    for used, most in longest.items():
        if used in given:
            packed = tensors.get(used.replace("seqused", "cu_seqlens"))
            rows = most if packed is None else packed.diff()
            tensors[used] = (rows * (shuffled(count) + 1) // count).int()
    return tensors
