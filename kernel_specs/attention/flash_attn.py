"""FlashAttention's functions, by the family that takes a call."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from runtime import tensors
from runtime.errors import InvalidArgument, shown
from runtime.front import is_explaining

from . import cache, checks
from .families import attend, is_few


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    seqused_q: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    leftpad_k: torch.Tensor | None = None,
    s_aux: torch.Tensor | None = None,
    num_splits: int = 0,
    qv: None = None,
    q_descale: None = None,
    k_descale: None = None,
    v_descale: None = None,
    attention_chunk: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
) -> Any:
    """Computes attention of a batch of sequences, as FlashAttention's function of this name.

    Query i of Sq is at key Sk - Sq + i, both as far as they are used: masks and distances are
    aligned bottom-right. A row that sees no key is 0. q, k, v and s_aux have gradients, unless the
    call has pages (block_table, or another function's cache_batch_idx); above head dimension 128,
    on GPUs before Hopper, calls with softcap, alibi_slopes or a head dimension of v that is not q's
    have none.

    Args:
        q: queries, [B, Sq, H, D], bf16 or fp16, on the CPU also f32; D is a multiple of 8, at most
            256. torch.autocast casts it, k, v and s_aux.
        k: keys, [B, Sk, Hk, D]; Hk divides H.
        v: values, [B, Sk, Hk, Dv]; Dv is a multiple of 8, at most 256.
        dropout_p: how probably a probability is dropped, as `kernelmint.attention` has it.
        softmax_scale: the factor on q k^T; D ** -0.5 if None.
        causal: a query sees no key after its own.
        window_size: how many keys before and after its own a query sees; -1: all.
        softcap: scores become softcap * tanh(score / softcap); 0: as they are.
        alibi_slopes: what a score loses for each key of distance, f32, [H] or [B, H]. On the CPU
            they have a gradient, unless the call has dropout or block_table; on GPUs from 8.0 on in
            bf16, up to head dimension 128, if the call is not deterministic either.
        deterministic: the gradients are the same, bit for bit, each time, as the CPU's always are,
            and Hopper's, and up to head dimension 128 those of GPUs from 8.0 on, if asked. Results
            of the forward always repeat.
        return_attn_probs: also return the log-sum-exp, and None in the place of the probabilities.
        seqused_q: how many queries of each sequence, at the front, there are, int32, [B]; the rows
            after them become 0. All if None.
        seqused_k: how many keys of each sequence there are, int32, [B]; all if None.
        leftpad_k: how many of the keys, at the front, are padding, int32, [B].
        s_aux: a learned logit for each head, a score without a value, [H], of q's dtype.
        num_splits: 1 makes a row's bits depend on no other sequence: all calls go to flash_prefill,
            by no row that was tuned. Otherwise the device decides into how many parts keys are
            split.
        qv, q_descale, k_descale, v_descale: None; FlashAttention-3's, which no kernel takes.
        attention_chunk: 0; FlashAttention-3's.
        pack_gqa, sm_margin: hints to FlashAttention-3's kernels; results are the same.

    Returns:
        the output, [B, Sq, H, Dv], of q's dtype; or (output, lse, None), lse float32, [B, H, Sq],
        natural log, the sink among the scores.

    Raises:
        KernelNotFound: no kernel suits; the message says for each candidate why.
        InvalidArgument: an argument is wrong, or asks for what no kernel does.
    """
    _refuse(
        qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale,
        attention_chunk=attention_chunk or None,
    )  # fmt: skip
    window = checks.window_of(causal, window_size)
    try:
        o, lse = attend(
            q, k, v, seqused_q=seqused_q, seqused_k=seqused_k, leftpad_k=leftpad_k, s_aux=s_aux,
            alibi_slopes=alibi_slopes, softmax_scale=softmax_scale, softcap=softcap, window=window,
            num_splits=num_splits, with_lse=return_attn_probs, deterministic=deterministic,
            dropout_p=dropout_p,
        )  # fmt: skip
    except InvalidArgument:
        batch = tensors.extents("q", q, 4)[0]
        tensors.check("k", k, 4)
        checks.check_call(
            q, {"k": k, "v": v}, batch, entries=batch, s_aux=s_aux, alibi_slopes=alibi_slopes,
            of_sequences={"seqused_q": seqused_q, "seqused_k": seqused_k, "leftpad_k": leftpad_k},
            softmax_scale=softmax_scale, flags={"return_attn_probs": return_attn_probs},
        )  # fmt: skip
        raise
    return (o, lse, None) if return_attn_probs else o


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor | None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: torch.Tensor | None = None,
    *,
    seqused_q: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    leftpad_k: torch.Tensor | None = None,
    s_aux: torch.Tensor | None = None,
    num_splits: int = 0,
    out: torch.Tensor | None = None,
    qv: None = None,
    q_descale: None = None,
    k_descale: None = None,
    v_descale: None = None,
    attention_chunk: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
) -> Any:
    """Computes attention of packed sequences of any lengths, as FlashAttention's function of this
    name.

    Lengths stay on the device: nothing waits for them. Rows of no sequence become 0.

    Args:
        q: queries of all sequences, one after the other, [total, H, D].
        k: keys, [total, Hk, D]; with block_table pages, [pages, page size, Hk, D].
        v: values, like k; their head dimension may be another.
        cu_seqlens_q: where each sequence begins, from 0 on, and where the last one ends, int32,
            [B + 1].
        cu_seqlens_k: the same of keys; with block_table lengths, or None and seqused_k.
        max_seqlen_q: the most queries of a sequence. If it is 1, and there are no more queries than
            sequences, queries over a cache are decoded as one token each; the device finds the
            sequence of each query. Otherwise the argument is not used.
        max_seqlen_k: not used.
        block_table: the pages of each sequence, in order, int32, [B, most pages of one].
        seqused_q: how many queries of each sequence, at the front, there are, int32, [B].
        seqused_k: the same of keys.
        leftpad_k: how many of the keys, at the front, are padding, int32, [B].
        out: where to write the output, [total, H, Dv]; not if gradients are asked for.

    The other arguments, and what is raised: as `flash_attn_func`'s.

    Returns:
        the output, [total, H, Dv]; or (output, lse, None), lse [H, total].
    """
    _refuse(
        qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale,
        attention_chunk=attention_chunk or None,
    )  # fmt: skip
    window, keys_and_values = checks.window_of(causal, window_size), {"k": k, "v": v}
    of_sequences = {
        "seqused_q": seqused_q, "seqused_k": seqused_k, "leftpad_k": leftpad_k,
        "block_table": block_table,
    }  # fmt: skip
    if block_table is None:
        tensors.check("k", k, 3)
        tensors.check("v", v, 3)
        if cu_seqlens_k is None:
            raise InvalidArgument(
                "cu_seqlens_k: got None, expected where each sequence's keys begin: only with "
                "block_table it may be None"
            )
        k, v = k[None], v[None]
    elif cu_seqlens_k is not None:
        seqused_k = cu_seqlens_k.diff() if seqused_k is None else seqused_k
        cu_seqlens_k = None
    try:
        o, lse = _packed(
            cu_seqlens_q, max_seqlen_q, q, k, v, seqused_q=seqused_q, cu_seqlens_k=cu_seqlens_k,
            seqused_k=seqused_k, leftpad_k=leftpad_k, block_table=block_table, s_aux=s_aux,
            alibi_slopes=alibi_slopes, softmax_scale=softmax_scale, softcap=softcap, out=out,
            window=window, num_splits=num_splits, with_lse=return_attn_probs,
            deterministic=deterministic, dropout_p=dropout_p,
        )  # fmt: skip
    except InvalidArgument:
        sequences = cache.batch_of(q, cu_seqlens_q)
        if cu_seqlens_k is not None:
            tensors.expect("cu_seqlens_k", cu_seqlens_k, (sequences + 1,), torch.int32, q.device)
        checks.check_call(
            q, keys_and_values, sequences, of_sequences=of_sequences, s_aux=s_aux,
            alibi_slopes=alibi_slopes, softmax_scale=softmax_scale,
            flags={"return_attn_probs": return_attn_probs},
        )  # fmt: skip
        raise
    return (o, lse, None) if return_attn_probs else o


def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    cache_seqlens: int | torch.Tensor | None = None,
    cache_batch_idx: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: torch.Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    *,
    s_aux: torch.Tensor | None = None,
    page_table: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: torch.Tensor | None = None,
    qv: None = None,
    q_descale: None = None,
    k_descale: None = None,
    v_descale: None = None,
    cu_seqlens_k_new: None = None,
    scheduler_metadata: None = None,
    attention_chunk: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
) -> Any:
    """Writes the newest keys and values into a cache and computes attention over it, as
    FlashAttention's function of this name.

    A wrong call is refused before the caches are written. Values of `cache_seqlens`,
    `cache_batch_idx`, `cache_leftpad`, `rotary_seqlens` and, in a call that writes, `block_table`
    are checked only on the CPU: on a GPU a check would wait for the device, and a graph that is
    recorded has no values yet. There, a key without a place in the caches is not written, a page or
    a cache that does not exist is read as another or as zeros, and a position beyond `rotary_cos`
    becomes the nearest.

    Args:
        q: queries, [B, Sq, H, D], or with cu_seqlens_q [total, H, D].
        k_cache: keys, [caches, Sk, Hk, D], or pages, [pages, page size, Hk, D].
        v_cache: values, like k_cache; their head dimension may be another.
        k: the newest keys, [B, Sn, Hk, D]: written into the cache from `cache_seqlens` on.
        v: the newest values.
        rotary_cos: cosines, [positions, half of what is rotated], of as many positions as a cache
            has keys, or more: q and k are rotated by their positions, both from `cache_seqlens` on,
            whatever `cache_leftpad` is (all of q by that position if no mask is on).
        rotary_sin: sines.
        cache_seqlens: how many keys there are in each cache before the newest, padding included,
            int32, [B], or one number; None: the cache is full.
        cache_batch_idx: the cache of each batch entry, int32, [B].
        cache_leftpad: how many keys at the front of each cache are padding, int32, [B].
        block_table: the pages of each batch entry, in order, int32, [B, most pages of one].
        rotary_interleaved: columns 2i and 2i + 1 are a pair; else i and i + half.
        return_softmax_lse: also return the log-sum-exp.
        page_table: FlashAttention-3's name of block_table.
        cu_seqlens_q: where each sequence's queries begin in q, from 0 on, and where the last one's
            end, int32, [B + 1]: numbers of queries may differ.
        max_seqlen_q: as `flash_attn_varlen_func`'s.
        rotary_seqlens: where rotated positions begin, in the place of `cache_seqlens`, int32, [B].
        cu_seqlens_k_new, scheduler_metadata: None; FlashAttention-3's, which no kernel takes.

    The other arguments, and what is raised: as `flash_attn_func`'s.

    Returns:
        the output, [B, Sq, H, Dv] or [total, H, Dv]; or (output, lse), lse [B, H, Sq] or
        [H, total].
    """
    _refuse(
        qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale,
        cu_seqlens_k_new=cu_seqlens_k_new, scheduler_metadata=scheduler_metadata,
        attention_chunk=attention_chunk or None,
    )  # fmt: skip
    window = checks.window_of(causal, window_size)
    batch = cache.batch_of(q, cu_seqlens_q)
    lengths = cache.lengths_of(q, batch, cache_seqlens)
    tables = {
        "block_table": block_table, "page_table": page_table, "cache_batch_idx": cache_batch_idx,
    }  # fmt: skip
    options: dict[str, Any] = {
        "leftpad_k": cache_leftpad, "block_table": block_table, "s_aux": s_aux, "window": window,
        "alibi_slopes": alibi_slopes, "softmax_scale": softmax_scale, "softcap": softcap,
        "num_splits": num_splits, "with_lse": return_softmax_lse,
    }  # fmt: skip

    def check() -> None:
        cache.check_table(q, batch, k_cache, v_cache, tables)
        named = {"cache_leftpad": cache_leftpad, "rotary_seqlens": rotary_seqlens}
        cache.check_lengths(q, batch, {"cache_seqlens": lengths, **named})
        rotary = {"rotary_cos": rotary_cos, "rotary_sin": rotary_sin}
        checks.check_call(
            q, {"k_cache": k_cache, "v_cache": v_cache}, batch, s_aux=s_aux, of_sequences={},
            alibi_slopes=alibi_slopes, softmax_scale=softmax_scale,
            flags={"return_softmax_lse": return_softmax_lse},
        )  # fmt: skip
        cache.check_newest(k, v, k_cache, v_cache, cache.table_of(tables), lengths, rotary)

    if (
        k is v is rotary_cos is rotary_sin is rotary_seqlens is None
        and page_table is cache_batch_idx is cu_seqlens_q is None
    ):
        try:
            cache.check_read(lengths, cache_leftpad, k_cache, tables)
            o, lse = attend(q, k_cache, v_cache, seqused_k=lengths, **options)
        except InvalidArgument:
            check()  # names the argument as this function does
            raise
        return (o, lse) if return_softmax_lse else o

    call = cache.signature(
        (k, v, rotary_cos, rotary_sin, rotary_seqlens, page_table, cache_batch_idx, cu_seqlens_q,
         q, k_cache, v_cache, lengths, cache_leftpad, block_table, s_aux, alibi_slopes),
        (window, softmax_scale, softcap, num_splits, max_seqlen_q),
    )  # fmt: skip
    is_new = not cache.is_right(call)
    if is_new:
        check()
    options["block_table"] = cache.table_of(tables)
    walk: Any = attend
    if cu_seqlens_q is not None:
        walk = functools.partial(_packed, cu_seqlens_q, max_seqlen_q)
    cache.check_caches(cache_batch_idx, k_cache)
    cache.check_read(lengths if k is None else None, cache_leftpad, k_cache, tables)
    if k is not None and v is not None and lengths is not None:
        follow = window != (-1, -1)  # queries are rotated by a position each
        are_checked = cache.check_values(
            q, k, k_cache, tables, lengths, cu_seqlens_q=cu_seqlens_q, leftpad=cache_leftpad,
            rotary_cos=rotary_cos, rotary_seqlens=rotary_seqlens, follow=follow, left=window[0],
        )  # fmt: skip
        if is_new and tensors.is_plain(q):  # else it is found while a graph is recorded
            result = walk(q, k_cache, v_cache, seqused_k=lengths, only_checks=True, **options)
            if is_explaining():
                return result  # before anything is written
        steps = torch.arange(k.shape[1], device=q.device)
        if rotary_cos is not None and rotary_sin is not None:
            begins = (lengths if rotary_seqlens is None else rotary_seqlens).long()[:, None]
            angles = (rotary_cos, rotary_sin, rotary_interleaved)
            k = cache.rotated(k, begins + steps, *angles)
            q = cache.rotated_queries(q, begins, *angles, cu_seqlens_q, follow)
        at = lengths.long()[:, None] + steps
        cache.write(k, v, k_cache, v_cache, at, options["block_table"], are_checked)
        lengths = lengths + k.shape[1]
    o, lse = walk(q, k_cache, v_cache, seqused_k=lengths, **options)
    if is_new:
        cache.note(call)
    return (o, lse) if return_softmax_lse else o


def _packed(
    cu_seqlens_q: torch.Tensor,
    max_seqlen_q: int | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    seqused_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    **options: Any,
) -> tuple[Any, Any]:
    """Returns o, [total, H, Dv], and lse, [H, total], of packed queries [total, H, D]."""
    checks.check_numbers(options["softcap"], max_seqlen_q=max_seqlen_q)
    total, heads, _ = tensors.extents("q", q, 3)
    (ends,) = tensors.extents("cu_seqlens_q", cu_seqlens_q, 1)
    kv_heads = tensors.extents("v", v, 4)[2]
    one_each = max_seqlen_q == 1 and 0 < total < ends  # if it is true, which is not relied on
    one_each = one_each and options["num_splits"] != 1 and not options.get("dropout_p")
    one_each = one_each and cu_seqlens_k is None and seqused_q is None
    # If a row's keys end at its own, what it sees follows from their number.
    ends_at_own = options["window"][1] == 0
    sees_all = options["window"] == (-1, -1) and options["alibi_slopes"] is None
    one_each = one_each and (ends_at_own or sees_all)
    if one_each and is_few(1, heads, kv_heads, q, k, v, options["s_aux"], options["alibi_slopes"]):
        padded_out = None if out is None else out[:, None]
        options, nobodys = cache.by_rows(q, v, cu_seqlens_q, options, ends_at_own)
        o, lse = attend(q[:, None], k, v, out=padded_out, **options)
        if lse is not None:
            lse = lse.flatten(1).T
            if options["s_aux"] is not None:  # rows of no sequence see them
                lse = lse.masked_fill(nobodys, -math.inf)
        return o.flatten(0, 1), lse
    padded_out = None if out is None else out[None]
    o, lse = attend(
        q[None], k, v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, seqused_q=seqused_q,
        out=padded_out, **options,
    )  # fmt: skip
    return o[0], None if lse is None else lse[0]


_DESCALE = "no kernel takes eight-bit floats, which it is for"
# FlashAttention-3's arguments that no kernel takes, and why.
_UNSERVED = {
    "qv": "no kernel adds products of queries and values to scores",
    **dict.fromkeys(("q_descale", "k_descale", "v_descale"), _DESCALE),
    "attention_chunk": "no kernel attends within chunks; window_size is of a sliding window",
    "cu_seqlens_k_new": "the newest keys are [B, Sn, Hk, D], as many of each sequence",
    "scheduler_metadata": "it is for FlashAttention-3's kernels; these plan on the device",
}


def _refuse(**others: object) -> None:
    """Raises InvalidArgument for what no kernel does."""
    for name, value in others.items():
        if value is not None:
            got = "a tensor" if isinstance(value, torch.Tensor) else shown(value)
            raise InvalidArgument(f"{name}: got {got}, expected None: {_UNSERVED[name]}")
