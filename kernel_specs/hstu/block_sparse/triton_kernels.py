"""Block-sparse attention for HSTU in Triton, and dense causal HSTU attention as its yardstick.

Five steps, each a kernel: pool the blocks; score them, attend to their means and select; turn the
lists around (for every block, the queries that chose it); attend to each block with the queries
that chose it, gathered, into one partial result a query and list entry; and add those up, normalise
and gate. Turning the lists around makes the selected branch dense: a block's keys and values are
read once, and its products are matrix products. A partial result belongs to one query and one list
entry, so no order of execution changes a bit of the output.

fp32 products are `ieee` or `tf32x3` (three TF32 products, about as exact); `bf16` rounds the
operands. Under TRITON_INTERPRET=1, set before Triton is first imported, all of it runs on a CPU.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch
import triton
import triton.language as tl

from ..jagged import Padded
from ..semantics import LAYER_NORM_EPSILON, Mode, check_selection, semantics_of

Dot: TypeAlias = Literal["ieee", "tf32x3", "tf32", "bf16"]

INTERPRETED: bool = triton.knobs.runtime.interpret
"""Whether the kernels run in Triton's interpreter, on CPU tensors."""

_LOWEST = tl.constexpr(-(2**63))
_ORDERED_NEGATIVE_INFINITY = tl.constexpr(-2139095041)  # -inf, as the integer that sorts like it
_GREATEST = tl.constexpr(torch.finfo(torch.float32).max)
_DENSE_TILES = {"bf16": (128, 64, 4, 3), "tf32": (128, 64, 8, 3), "tf32x3": (128, 32, 8, 2)}


@triton.jit
def _silu(x):
    # exp(-x) may overflow to inf, and x / inf is then -0.0: the limit
    return x / (1.0 + tl.exp(-x))


@triton.jit
def _dot(a, b, DOT: tl.constexpr):
    if DOT == "bf16":
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16))
    else:  # noqa: RET505  a constexpr branch: only with its else is one of the two left out
        return tl.dot(a, b, input_precision=DOT)


@triton.jit
def _load_rows(pointer, row, inside, size, column):
    # [rows, columns]; 0 where a row is not inside, or a column is none of `size`
    return tl.load(
        pointer + row[:, None] * size + column[None, :],
        mask=inside[:, None] & (column < size)[None, :],
        other=0.0,
    )


@triton.jit
def _store_rows(pointer, row, inside, size, column, values):
    tl.store(
        pointer + row[:, None] * size + column[None, :],
        values,
        mask=inside[:, None] & (column < size)[None, :],
    )


@triton.jit
def _pool(x, out, T, H, D, C, BS: tl.constexpr, N: tl.constexpr, DP: tl.constexpr):
    # one block of one head: the mean of x[b, c * BS : (c + 1) * BS, h]
    c = tl.program_id(0)
    bh = tl.program_id(1)
    b, h = bh // H, bh % H
    j = tl.arange(0, N)
    d = tl.arange(0, DP)
    t = c * BS + j
    inside = ((j < BS) & (t < T))[:, None] & (d < D)[None, :]
    offset = ((b * T + t).to(tl.int64) * H + h) * D
    rows = tl.load(x + offset[:, None] + d[None, :], mask=inside, other=0.0)
    mean = tl.sum(rows, axis=0) / BS
    tl.store(out + (bh.to(tl.int64) * C + c) * D + d, mean, mask=d < D)


@triton.jit
def _score(
    q, k_cmp, v_cmp, g_cmp, o_cmp, block_indices,
    T, H, A, L, C, scale,
    BS: tl.constexpr, S: tl.constexpr, SP: tl.constexpr, AP: tl.constexpr, LP: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, DOT: tl.constexpr,
    OPEN_FIRST_ROWS: tl.constexpr, RANK_UNSEEN: tl.constexpr, SHARE_HEADS: tl.constexpr,
    MASKED_RANK: tl.constexpr, LOCAL_RANK: tl.constexpr,
):  # fmt: skip
    # M queries of one head: o_cmp [M, L], and their lists of S blocks
    tile = tl.program_id(0)
    bh = tl.program_id(1)
    b, h = bh // H, bh % H
    t = tile * M + tl.arange(0, M)
    a = tl.arange(0, AP)
    x = tl.arange(0, LP)
    row = (b * T + t).to(tl.int64) * H + h
    query = _load_rows(q, row, t < T, A, a)
    current = t // BS
    out = tl.zeros((M, LP), dtype=tl.float32)
    # A candidate is one integer: its score, as an integer that sorts like the float, above the
    # complement of its index; so the greatest is the best score and, among equals, the least index.
    lowest = tl.full((), _LOWEST, tl.int64)
    slot = tl.arange(0, SP)
    best = tl.full((M, SP), _LOWEST, tl.int64)
    # beyond the tile's last own block, only a mode that ranks unseen blocks has anything to do
    last = tl.minimum(tl.minimum(tile * M + M, T) - 1, T - 1) // BS + 1
    if RANK_UNSEEN:
        last = C
    for first in range(0, last, N):
        c = first + tl.arange(0, N)
        cmp_row = bh.to(tl.int64) * C + c
        keys = _load_rows(k_cmp, cmp_row, c < C, A, a)
        values = _load_rows(v_cmp, cmp_row, c < C, L, x)
        logits = _dot(query * scale, tl.trans(keys), DOT)
        seen = (c[None, :] + 1) * BS - 1 <= t[:, None]
        if OPEN_FIRST_ROWS:
            seen = seen | (t < BS - 1)[:, None]
        seen = seen & (c < C)[None, :]
        weights = tl.where(seen, _silu(logits) / scale, 0.0)
        out += _dot(weights, values, DOT)

        # NaN and +inf count as the greatest finite number
        ranking = tl.where(seen, tl.where(weights < _GREATEST, weights, _GREATEST), MASKED_RANK)
        ranking = tl.where(c[None, :] == current[:, None], LOCAL_RANK, ranking) + 0.0
        bits = ranking.to(tl.int32, bitcast=True)
        ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
        candidates = (ordered << 32) | (0x7FFFFFFF - c[None, :]).to(tl.int64)
        candidates = tl.where((c < C)[None, :], candidates, lowest)
        merged = tl.full((M, SP), _LOWEST, tl.int64)
        for s in tl.static_range(S):
            top = tl.maximum(tl.max(best, axis=1), tl.max(candidates, axis=1))
            best = tl.where(best == top[:, None], lowest, best)
            candidates = tl.where(candidates == top[:, None], lowest, candidates)
            merged = tl.where(slot[None, :] == s, top[:, None], merged)
        best = merged

    gate = tl.load(g_cmp + row, mask=t < T, other=0.0)
    _store_rows(o_cmp, row, t < T, L, x, out * gate[:, None])
    index = 0x7FFFFFFF - (best & 0x7FFFFFFF)
    absent = (index > current[:, None]) | ((best >> 32) <= _ORDERED_NEGATIVE_INFINITY)
    chosen = tl.where(absent, -1, index)
    target = bh.to(tl.int64) * T + t
    if SHARE_HEADS:  # an even head's list is also the next head's
        if h % 2 == 0:
            _store_rows(block_indices, target, t < T, S, slot, chosen)
            if h + 1 < H:
                _store_rows(block_indices, target + T, t < T, S, slot, chosen)
    else:
        _store_rows(block_indices, target, t < T, S, slot, chosen)


@triton.jit
def _list_entry(e, bh, T, H, S: tl.constexpr, REINTERPRET: tl.constexpr):
    # entry e of head bh is (t, s) = divmod(e, S): where in block_indices it lies
    t, s = e // S, e % S
    if REINTERPRET:
        position = (bh // H).to(tl.int64) * H * T + t * H + bh % H
    else:
        position = bh.to(tl.int64) * T + t
    return t, position * S + s


@triton.jit
def _count(
    block_indices, counts, rank, T, H, C,
    BS: tl.constexpr, S: tl.constexpr, M: tl.constexpr, REINTERPRET: tl.constexpr,
):  # fmt: skip
    # how many queries chose each block, and every entry's place among them
    bh = tl.program_id(1)
    e = tl.program_id(0) * M + tl.arange(0, M)
    t, where = _list_entry(e, bh, T, H, S, REINTERPRET)
    c = tl.load(block_indices + where, mask=e < T * S, other=-1)
    used = (c >= 0) & (c * BS <= t)
    place = tl.atomic_add(counts + bh * C + c, 1, mask=used)
    tl.store(rank + bh.to(tl.int64) * T * S + e, tl.where(used, place, -1), mask=e < T * S)


@triton.jit
def _place(
    block_indices, rank, first, order, T, H, C,
    S: tl.constexpr, M: tl.constexpr, REINTERPRET: tl.constexpr,
):  # fmt: skip
    # order[bh, first[bh, c] : ...] := the entries that chose block c
    bh = tl.program_id(1)
    e = tl.program_id(0) * M + tl.arange(0, M)
    _, where = _list_entry(e, bh, T, H, S, REINTERPRET)
    c = tl.load(block_indices + where, mask=e < T * S, other=-1)
    place = tl.load(rank + bh.to(tl.int64) * T * S + e, mask=e < T * S, other=-1)
    start = tl.load(first + bh * C + c, mask=place >= 0, other=0)
    tl.store(order + bh.to(tl.int64) * T * S + start + place, e, mask=place >= 0)


@triton.jit
def _selected(
    q, k, v, partial, order, first, counts, chunk_block, chunk_first, chunks,
    T, H, A, L, C, scale,
    BS: tl.constexpr, S: tl.constexpr, N: tl.constexpr, AP: tl.constexpr, LP: tl.constexpr,
    M: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    # M of the queries that chose one block: each one's partial result for that list entry
    chunk = tl.program_id(0)
    bh = tl.program_id(1)
    if chunk < tl.load(chunks + bh):
        b, h = bh // H, bh % H
        c = tl.load(chunk_block + bh * tl.num_programs(0) + chunk)
        begin = (chunk - tl.load(chunk_first + bh * C + c)) * M
        m = begin + tl.arange(0, M)
        inside = m < tl.load(counts + bh * C + c)
        start = bh.to(tl.int64) * T * S + tl.load(first + bh * C + c)
        entry = tl.load(order + start + m, mask=inside, other=0)
        t = entry // S
        a = tl.arange(0, AP)
        x = tl.arange(0, LP)
        n = tl.arange(0, N)
        row = (b * T + t).to(tl.int64) * H + h
        query = _load_rows(q, row, inside, A, a)
        j = (c * BS + n).to(tl.int32)
        inside_block = (n < BS) & (j < T)
        key_row = (b * T + j).to(tl.int64) * H + h
        keys = _load_rows(k, key_row, inside_block, A, a)
        values = _load_rows(v, key_row, inside_block, L, x)
        logits = _dot(query, tl.trans(keys), DOT)
        allowed = inside_block[None, :] & (j[None, :] <= t[:, None])
        weights = tl.where(allowed, _silu(logits) / scale, 0.0)
        out = _dot(weights, values, DOT)
        target = bh.to(tl.int64) * T * S + entry
        _store_rows(partial, target, inside, L, x, out.to(partial.dtype.element_ty))


@triton.jit
def _normalised(x, width, inside, EPSILON: tl.constexpr):
    mean = tl.sum(x, axis=1) / width
    centred = tl.where(inside, x - mean[:, None], 0.0)
    variance = tl.sum(centred * centred, axis=1) / width
    return centred / tl.sqrt(variance + EPSILON)[:, None]


@triton.jit
def _combine(
    o_cmp, partial, rank, u, o, T, H, L,
    S: tl.constexpr, WP: tl.constexpr, M: tl.constexpr, EPSILON: tl.constexpr,
):  # fmt: skip
    # M tokens of one sequence, all heads: LayerNorm of both branches, u, and their sum
    b = tl.program_id(1)
    t = tl.program_id(0) * M + tl.arange(0, M)
    w = tl.arange(0, WP)
    h, x = w // L, w % L
    width = H * L
    inside = (t < T)[:, None] & (w < width)[None, :]
    offset = (b * T + t).to(tl.int64)[:, None] * width + w[None, :]
    compressed = tl.load(o_cmp + offset, mask=inside, other=0.0)
    selected = tl.zeros((M, WP), dtype=tl.float32)
    for s in tl.static_range(S):
        entry = ((b * H + h).to(tl.int64)[None, :] * T + t[:, None]) * S + s
        used = tl.load(rank + entry, mask=inside, other=-1) >= 0
        selected += tl.load(partial + entry * L + x[None, :], mask=used, other=0.0).to(tl.float32)
    gate_u = tl.load(u + offset, mask=inside, other=0.0)
    o_cmp_u = _normalised(compressed, width, inside, EPSILON) * gate_u
    o_slc_u = _normalised(selected, width, inside, EPSILON) * gate_u
    tl.store(o + offset, o_cmp_u + o_slc_u, mask=inside)


@triton.jit
def _dense(
    q, k, v, o, T, H, A, L, inverse_n,
    AP: tl.constexpr, LP: tl.constexpr, M: tl.constexpr, N: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    # M queries of one head: o = sum over j <= t of SiLU(q·k_j) / n v_j. The longest rows go first.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    bh = tl.program_id(1)
    b, h = bh // H, bh % H
    t = tile * M + tl.arange(0, M)
    a = tl.arange(0, AP)
    x = tl.arange(0, LP)
    row = (b * T + t).to(tl.int64) * H + h
    query = _load_rows(q, row, t < T, A, a)
    out = tl.zeros((M, LP), dtype=tl.float32)
    head_k = k + (b.to(tl.int64) * T * H + h) * A
    head_v = v + (b.to(tl.int64) * T * H + h) * L
    for begin in range(0, tl.minimum(tile * M + M, T), N):
        j = begin + tl.arange(0, N)
        keys = _load_rows(head_k, j.to(tl.int64) * H, j < T, A, a)
        values = _load_rows(head_v, j.to(tl.int64) * H, j < T, L, x)
        weights = _silu(_dot(query, tl.trans(keys), DOT))
        if begin + N > tile * M:
            weights = tl.where(j[None, :] <= t[:, None], weights, 0.0)
        out += _dot(weights, values, DOT)
    _store_rows(o, row, t < T, L, x, (out * inverse_n).to(o.dtype.element_ty))


def _padded(size: int) -> int:
    """Returns the extent of a tile that holds `size` elements and can enter a matrix product."""
    return max(16, int(triton.next_power_of_2(size)))


def block_sparse_attention(
    *tensors: torch.Tensor,
    block_count: int = 4,
    block_size: int = 32,
    mode: Mode = "fixed",
    dot: Dot = "tf32x3",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes reference.block_sparse_attention of contiguous fp32 tensors, in `dot` precision."""
    flags = semantics_of(mode)
    Padded(*tensors).check(torch.float32)
    q, k, v, u, g_cmp = (x.contiguous() for x in tensors)
    B, T, H, A = q.shape
    L = v.shape[3]
    check_selection(block_count, block_size, H, T, flags)
    if flags.share == "time":
        raise ValueError("the Triton kernels share lists over heads, not over time")
    C = -(-T // block_size)
    S = min(block_count, C)
    AP, LP, N = _padded(A), _padded(L), _padded(block_size)
    heads = B * H

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=q.device)

    k_cmp, v_cmp = empty(heads, C, A), empty(heads, C, L)
    pool: Any = _pool
    pool[C, heads](k, k_cmp, T, H, A, C, BS=block_size, N=N, DP=AP, num_warps=2)
    pool[C, heads](v, v_cmp, T, H, L, C, BS=block_size, N=N, DP=LP, num_warps=2)

    o_cmp = empty(B, T, H, L)
    block_indices = empty(B, H, T, S, dtype=torch.int64)
    score: Any = _score
    rows = 64
    score[triton.cdiv(T, rows), heads](
        q, k_cmp, v_cmp, g_cmp, o_cmp, block_indices, T, H, A, L, C, float(A),
        BS=block_size, S=S, SP=int(triton.next_power_of_2(S)), AP=AP, LP=LP, M=rows, N=32, DOT=dot,
        OPEN_FIRST_ROWS=flags.open_first_rows, RANK_UNSEEN=flags.masked_rank != float("-inf"),
        SHARE_HEADS=flags.share == "heads", MASKED_RANK=flags.masked_rank,
        LOCAL_RANK=flags.local_rank, num_warps=4,
    )  # fmt: skip

    reinterpret = flags.list_layout == "reinterpret"
    counts = torch.zeros(heads, C, dtype=torch.int32, device=q.device)
    place = empty(heads, T, S, dtype=torch.int32)
    order = empty(heads, T * S, dtype=torch.int32)
    entries = 1024
    count: Any = _count
    count[triton.cdiv(T * S, entries), heads](
        block_indices,
        counts,
        place,
        T,
        H,
        C,
        BS=block_size,
        S=S,
        M=entries,
        REINTERPRET=reinterpret,
    )
    first = (torch.cumsum(counts, 1) - counts).int()
    put: Any = _place
    put[triton.cdiv(T * S, entries), heads](
        block_indices, place, first, order, T, H, C, S=S, M=entries, REINTERPRET=reinterpret
    )

    gathered = 64
    most_chunks = C + T * S // gathered
    ends = torch.cumsum((counts + gathered - 1) // gathered, 1)
    chunk = torch.arange(most_chunks, device=q.device).expand(heads, -1).contiguous()
    chunk_block = torch.searchsorted(ends, chunk, right=True).int()
    chunk_first = torch.nn.functional.pad(ends[:, :-1], (1, 0)).int().contiguous()
    chunks = ends[:, -1].int().contiguous()
    partial = empty(heads, T, S, L, dtype=torch.bfloat16 if dot == "bf16" else torch.float32)
    selected: Any = _selected
    selected[most_chunks, heads](
        q, k, v, partial, order, first, counts, chunk_block, chunk_first, chunks,
        T, H, A, L, C, float(A),
        BS=block_size, S=S, N=N, AP=AP, LP=LP, M=gathered, DOT=dot, num_warps=4,
    )  # fmt: skip

    o = empty(B, T, H, L)
    combine: Any = _combine
    tokens = 8 if INTERPRETED else 1
    combine[triton.cdiv(T, tokens), B](
        o_cmp, partial, place, u, o, T, H, L,
        S=S, WP=int(triton.next_power_of_2(H * L)), M=tokens,
        EPSILON=LAYER_NORM_EPSILON, num_warps=4,
    )  # fmt: skip
    return o, block_indices


def dense_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, dot: Dot = "tf32x3"
) -> torch.Tensor:
    """Computes dense causal HSTU attention: sums of SiLU(q·k_j) / T v_j, j <= t, [B, T, H, L].

    q, k: [B, T, H, A]; v: [B, T, H, L]; contiguous, all fp32 or all bf16, which o takes over.
    """
    B, T, H, A = q.shape
    L = v.shape[3]
    o = torch.empty_like(v)
    M, N, num_warps, num_stages = _DENSE_TILES.get(dot, (64, 32, 4, 2))
    dense: Any = _dense
    dense[triton.cdiv(T, M), B * H](
        q, k, v, o, T, H, A, L, 1.0 / T, AP=_padded(A), LP=_padded(L), M=M, N=N, DOT=dot,
        num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    return o
