"""flash-attn's functions. They bring a call's arguments into the form that upstream's kernels take,
as its binding does; a front then finds the kernel, and the family's gradient the backward pass."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor
from torch.nn.functional import pad

import kernelmint


def _window(
    window: tuple[int, int], causal: bool, seqlen_q: int, seqlen_k: int, biased: bool
) -> tuple[int, int]:
    """Returns the keys before and after its own that a query sees: -1 is all of a side."""
    left, right = window
    left = -1 if left < 0 or left >= seqlen_k else left
    if causal and (seqlen_q > 1 or biased):  # the only query sees all keys either way
        return left, 0
    return left, -1 if right < 0 or right >= seqlen_k else right


# The schema is said since PyTorch 2.4 does not read it from annotations that are texts.
@torch.library.custom_op(
    "flash_attn_pack::philox", mutates_args=(), schema="(Tensor like, int count) -> Tensor"
)
def _philox(like: Tensor, count: int) -> Tensor:
    """Returns the seed and the offset of `count` random numbers a thread, [2] on the CPU, which
    PyTorch's generator of the device of `like` then leaves out."""
    if like.device.type != "cuda":  # the front refuses it
        return torch.zeros(2, dtype=torch.int64)
    index = torch.cuda.current_device() if like.device.index is None else like.device.index
    generator = torch.cuda.default_generators[index]
    offset = generator.get_offset()
    generator.set_offset(offset + math.ceil(count / 4) * 4)
    seed = generator.initial_seed()
    return torch.tensor([seed - (1 << 64) if seed >= 1 << 63 else seed, offset])


@_philox.register_fake
def _(like: Tensor, count: int) -> Tensor:
    return torch.empty(2, dtype=torch.int64)


def _best_splits(blocks: int, resident: int, steps: int) -> int:
    """Returns the fewest splits of `steps` whose waves, of `resident` thread blocks each, are
    filled to 85% of the best number's."""
    filled = []  # busy part of the last wave, 0 if one split fewer takes as many steps
    for splits in range(1, min(128, resident, steps) + 1):
        waves = blocks * splits / resident
        differs = splits == 1 or -(-steps // splits) != -(-steps // (splits - 1))
        filled.append(waves / math.ceil(waves) if differs else 0.0)
    best = max(filled)
    for splits, part in enumerate(filled, 1):
        if part > 0 and part >= 0.85 * best:
            return splits
    return 1


_best_splits_known = functools.lru_cache(_best_splits)


def _splits(q: Tensor, batch: int, seqlen_q: int, heads: int, head_dim: int, seqlen_k: int) -> int:
    """Returns upstream's choice for q [batch, seqlen_q, heads, head_dim]."""
    step = 256 if head_dim <= 64 else 128 if head_dim <= 128 else 64
    blocks = batch * heads * -(-seqlen_q // 64)
    if seqlen_k <= step or blocks == 0:
        return 1
    resident = 2 * kernelmint.sm_count(q.device)  # blocks of 128 threads, of which an SM holds two
    if blocks >= 0.8 * resident:
        return 1
    best = _best_splits if torch.compiler.is_compiling() else _best_splits_known
    return best(blocks, resident, -(-seqlen_k // step))


def _get_block_size_n(device, head_dim: int, is_dropout: bool, is_causal: bool) -> int:
    """Returns the keys of a step of the forward kernel, which upstream's tests ask."""
    names = {64: 128 if not is_dropout else 64, 96: 64, 128: 64 if not is_dropout else 32}
    return 128 if head_dim <= 32 else next((n for d, n in names.items() if head_dim <= d), 64)


def _rows(t: Tensor | None) -> Tensor | None:
    return t if t is None or t.stride(-1) == 1 else t.contiguous()


def _padded(t: Tensor) -> Tensor:
    """Pads rows to a multiple of 8 elements, each beside the next."""
    left = -t.shape[-1] % 8
    return pad(t, (0, left)) if left else t if t.stride(-1) == 1 else t.contiguous()


def _slopes(slopes: Tensor | None) -> Tensor | None:
    return slopes if slopes is None or slopes.dim() == 2 else slopes[None]


class _NotDifferentiable(torch.autograd.Function):
    """An output without a gradient with regard to q, k and v: a backward pass says so."""

    @staticmethod
    def forward(ctx, out: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return out.view_as(out)

    @staticmethod
    def backward(ctx, *gradients: Tensor):
        raise RuntimeError(
            "flash_attn_varlen_func: flash-attn has no backward pass of pages; gather them, and "
            "call it without block_table, or call it in torch.no_grad()"
        )


def _needs_grad(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _by_groups(q: Tensor, heads: int) -> Tensor:
    """Turns [B, 1, H, D] into [B, H / heads, heads, D]: the queries that share a head of keys are
    rows."""
    return q.reshape(q.shape[0], heads, -1, q.shape[3]).transpose(1, 2)


def _from_groups(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the results of such rows, as [B, 1, H, D] and [B, H, 1]."""
    batch, _, _, head_dim = out.shape
    return out.transpose(1, 2).reshape(batch, 1, -1, head_dim), lse.reshape(batch, -1, 1)


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    return_attn_probs: bool,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    block_table: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """Computes attention of q [B, Sq, H, D], k and v [B, Sk, Hk, D]; B is 1 with cu_seqlens."""
    # A call is short: tensors are asked for as little as may be, and views made if they differ.
    batch, seqlen_q, heads, head_dim = q.shape
    scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
    slopes = _slopes(alibi_slopes)
    is_padded = head_dim % 8 != 0
    if is_padded or not (q.is_contiguous() and k.is_contiguous() and v.is_contiguous()):
        q, k, v = _padded(q), _padded(k), _padded(v)
    is_packed = cu_seqlens_q is not None
    seqlen_q, seqlen_k = (max_seqlen_q, max_seqlen_k) if is_packed else (seqlen_q, k.shape[1])
    dropout = dropout_p > 0
    if dropout and softcap > 0:
        raise ValueError("softcap > 0: flash-attn caps no scores with dropout")
    if seqlen_k == 0:
        out = q[..., :head_dim] * 0.0
        lse = q.new_full((batch, heads, q.shape[1]), math.inf, dtype=torch.float32)
        lse = lse[0] if is_packed else lse
        return (out, lse, q.new_empty(0)) if return_attn_probs else out

    left, right = _window(window_size, causal, seqlen_q, seqlen_k, slopes is not None)
    leaves = None
    # A single query: the queries of a group become rows of one head.
    grouped = (
        seqlen_q == 1 and left < 0 and right < 0 and not dropout and slopes is None
        and heads > (heads_k := k.shape[2])
    )  # fmt: skip
    if is_packed and (grouped or block_table is not None) and _needs_grad(q, k, v):
        if block_table is not None:
            leaves = q, k, v
            q, k, v = (t.detach() for t in leaves)
        else:  # the backward pass takes queries and keys packed, or neither
            grouped = False
    if grouped:
        q = _by_groups(q.transpose(0, 1) if is_packed else q, heads_k)
        cu_seqlens_q = None
        batch, seqlen_q, heads, _ = q.shape

    splits = 1
    if not dropout and cu_seqlens_q is None:
        splits = _splits(q, batch, seqlen_q, heads, head_dim, seqlen_k)
    returns_probs = return_attn_probs and dropout
    if splits > 1 or block_table is not None:
        out, lse = kernelmint.flash_attn_split(
            q, k, v, cu_seqlens_q, cu_seqlens_k, block_table=_rows(block_table),
            alibi_slopes=slopes, softmax_scale=scale, softcap=float(softcap),
            window_left=left, window_right=right, deterministic=deterministic,
            max_seqlen_q=seqlen_q, max_seqlen_k=seqlen_k, num_splits=splits,
        )  # fmt: skip
    else:
        rng = None
        if dropout:
            sequences = batch if cu_seqlens_q is None else len(cu_seqlens_q) - 1
            rng = _philox(q, sequences * heads * 32)
        out, lse, *more = kernelmint.flash_attn_forward(
            q, k, v, cu_seqlens_q, cu_seqlens_k, alibi_slopes=slopes, rng=rng,
            softmax_scale=scale, p_dropout=float(dropout_p), softcap=float(softcap),
            window_left=left, window_right=right, deterministic=deterministic,
            max_seqlen_q=seqlen_q, max_seqlen_k=seqlen_k,
            return_s_dmask=returns_probs, return_rng_state=dropout,
        )  # fmt: skip
    if grouped:
        out, lse = _from_groups(out, lse)
        if is_packed:  # each sequence is one query
            out, lse = out.transpose(0, 1), lse.permute(2, 1, 0)
    if is_padded:
        out = out[..., :head_dim]
    if leaves is not None:
        out = _NotDifferentiable.apply(out, *leaves)
    if not return_attn_probs:
        return out
    return out, lse[0] if is_packed else lse, more[0] if returns_probs else q.new_empty(0)


def flash_attn_func(
    q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
    alibi_slopes=None, deterministic=False, return_attn_probs=False,
):  # fmt: skip
    """Computes attention of q [B, Sq, H, D] over k and v [B, Sk, Hk, D], in bf16 or fp16.

    Args:
        dropout_p: how probably a probability is dropped.
        softmax_scale: the factor on q k^T; D ** -0.5 if None.
        causal: whether query i sees keys up to Sk - Sq + i alone.
        window_size: how many keys before and after its own a query sees; -1: all.
        softcap: scores become softcap * tanh(score / softcap); 0: as they are.
        alibi_slopes: f32, [H] or [B, H]: what a score loses for each key of distance.
        deterministic: whether the backward pass adds up dq in the same order each time.
        return_attn_probs: whether to return the log-sum-exps and, with dropout, the probabilities.

    Returns:
        out [B, Sq, H, D]; with return_attn_probs also lse [B, H, Sq] and the probabilities
        [B, H, Sq, Sk], lengths rounded up to 128, negative if dropped; empty without dropout.
    """
    return _attention(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
        deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_kvpacked_func(
    q, kv, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
    alibi_slopes=None, deterministic=False, return_attn_probs=False,
):  # fmt: skip
    """Calls flash_attn_func with kv [B, Sk, 2, Hk, D]."""
    k, v = kv.unbind(2)
    return _attention(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
        deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_qkvpacked_func(
    qkv, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
    alibi_slopes=None, deterministic=False, return_attn_probs=False,
):  # fmt: skip
    """Calls flash_attn_func with qkv [B, S, 3, H, D]."""
    q, k, v = qkv.unbind(2)
    return _attention(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
        deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
    softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
    deterministic=False, return_attn_probs=False, block_table=None,
):  # fmt: skip
    """Calls flash_attn_func on packed sequences: q [total_q, H, D], k and v [total_k, Hk, D], or
    pages [pages, page_size, Hk, D] with block_table; cu_seqlens [sequences + 1], i32.

    out is [total_q, H, D], lse [H, total_q]."""
    if block_table is None:
        k, v = k[None], v[None]
    results = _attention(
        q[None], k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
        deterministic, return_attn_probs, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
        block_table,
    )  # fmt: skip
    return (results[0][0], *results[1:]) if return_attn_probs else results[0]


def flash_attn_varlen_kvpacked_func(
    q, kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
    softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
    deterministic=False, return_attn_probs=False,
):  # fmt: skip
    """Calls flash_attn_varlen_func with kv [total_k, 2, Hk, D]."""
    k, v = kv.unbind(1)
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale,
        causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_qkvpacked_func(
    qkv, cu_seqlens, max_seqlen, dropout_p=0.0, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
    return_attn_probs=False,
):  # fmt: skip
    """Calls flash_attn_varlen_func with qkv [total, 3, H, D]."""
    q, k, v = qkv.unbind(1)
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p, softmax_scale, causal,
        window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_with_kvcache(
    q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
    cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0,
    return_softmax_lse=False,
):  # fmt: skip
    """Computes attention of q [B, Sq, H, D] over a cache, to which k and v are appended first, in
    place.

    Args:
        k_cache, v_cache: [B, Sk, Hk, D], or pages [pages, page_size, Hk, D] with block_table.
        k, v: [B, Sn, Hk, D], written behind the first cache_seqlens keys.
        rotary_cos, rotary_sin: [at least Sk, R / 2]: q and k are turned by them, in R columns.
        cache_seqlens: how many keys each sequence has, an int or i32 [B].
        cache_batch_idx: which entry of the cache is a sequence's, i32 [B].
        cache_leftpad: how many keys at the front are padding, i32 [B].
        block_table: the pages of each sequence, in order, i32 [B, pages].
        rotary_interleaved: whether columns 0 and 1 are turned together, or 0 and R / 2.
        num_splits: into how many parts a row of keys is split; 0: as many as fill the device.

    The others are flash_attn_func's. It has no gradient.

    Returns:
        out [B, Sq, H, D]; with return_softmax_lse also lse [B, H, Sq].
    """
    if _needs_grad(q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, alibi_slopes):
        with torch.no_grad():
            return flash_attn_with_kvcache(
                q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx,
                cache_leftpad, block_table, softmax_scale, causal, window_size, softcap,
                rotary_interleaved, alibi_slopes, num_splits, return_softmax_lse,
            )  # fmt: skip
    batch, seqlen_q, heads, head_dim = q.shape
    _, seqlen_k, heads_k, _ = k_cache.shape
    scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
    slopes, q, keys, values = _slopes(alibi_slopes), _padded(q), _padded(k_cache), _padded(v_cache)
    if isinstance(cache_seqlens, int):
        cache_seqlens = torch.full((batch,), cache_seqlens, dtype=torch.int32, device=q.device)
    if block_table is not None:
        seqlen_k *= block_table.shape[1]
    left, right = _window(window_size, causal, seqlen_q, seqlen_k, slopes is not None)
    grouped = seqlen_q == 1 and heads > heads_k and left < 0 and right < 0 and slopes is None
    if grouped:
        q = _by_groups(q, heads_k)
        seqlen_q, heads = heads // heads_k, heads_k
    if num_splits < 1:
        num_splits = _splits(q, batch, seqlen_q, heads, head_dim, seqlen_k)
    common = {
        "cache_seqlens": _rows(cache_seqlens), "leftpad_k": cache_leftpad,
        "block_table": _rows(block_table), "cache_batch_idx": _rows(cache_batch_idx),
        "alibi_slopes": slopes, "softmax_scale": scale, "softcap": float(softcap),
        "window_left": left, "window_right": right, "num_splits": num_splits,
    }  # fmt: skip
    if k is None:
        out, lse = kernelmint.flash_attn_split(q, keys, values, **common)
    else:
        out, lse = kernelmint.flash_attn_append(
            q, keys, values, _padded(k), _padded(v), rotary_cos=rotary_cos, rotary_sin=rotary_sin,
            rotary_interleaved=rotary_interleaved, **common,
        )  # fmt: skip
        for cache, padded in ((k_cache, keys), (v_cache, values)):
            if padded is not cache:  # the head dimension was padded
                cache.copy_(padded[..., :head_dim])
    if grouped:
        out, lse = _from_groups(out, lse)
    if head_dim % 8:
        out = out[..., :head_dim]
    return (out, lse) if return_softmax_lse else out
