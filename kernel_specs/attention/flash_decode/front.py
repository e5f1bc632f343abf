"""Attention over a cache without a key: picks a kernel of flash_decode that suits the arguments."""

from __future__ import annotations

from typing import Any

import torch

from runtime import tensors
from runtime.errors import InvalidArgument, shown, unexpected
from runtime.front import Front, values_of

_FAMILY = "flash_decode"


def _takes(device: torch.device, D: int, Dv: int, block_table: bool) -> dict[str, Any]:
    """What is compiled into kernels for GPUs; those of the CPU take any head dimension."""
    if device.type != "cuda":
        return {}
    wide = max(D, Dv)
    widths = values_of(_FAMILY, "d_head", on_cuda=True)
    return {"d_head": next((d for d in widths if wide <= d), wide), "paged": block_table}


_chosen = Front(_FAMILY, _takes).__call__  # bound once: a call of the object itself is slower
_chosen_alone = Front(_FAMILY, _takes, tuned=False).__call__


def decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    seqused_k: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    leftpad_k: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = True,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    s_aux: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    batch_invariant: bool = False,
    return_lse: bool = False,
    out: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
) -> Any:
    """Attention of the newest queries over a cache of keys and values, which may lie in pages.

    Query i of Sq is at key `seqused_k - Sq + i` of its cache: masks and distances are aligned
    bottom-right, as FlashAttention's. Lengths stay on the device: nothing waits for them, and a
    call may be captured in a CUDA graph and replayed with others. Best for few queries: up to 16
    of all heads that share keys are computed at once.

    Args:
        q: queries, [B, Sq, H, D], bf16 or fp16, on the CPU also f32; D is a multiple of 8, at most
            256 on a GPU. torch.autocast casts it, the caches and s_aux.
        k_cache: keys, [B, Sk, Hk, D], or pages, [pages, page size, Hk, D]; Hk divides H.
        v_cache: values, like k_cache; their head dimension may be another, Dv.
        seqused_k: how many keys of each cache there are, int32, [B]; all if None.
        block_table: the pages of each batch entry, in order, int32, [B, most pages of one].
        leftpad_k: how many of the keys, at the front, are padding, int32, [B].
        softmax_scale: the factor on q k^T; D ** -0.5 if None.
        causal: a query sees no key after its own.
        window_size: how many keys before and after its own a query sees; -1: all.
        softcap: scores become softcap * tanh(score / softcap); 0: as they are.
        s_aux: a learned logit for each head, a score without a value, [H], of q's dtype.
        alibi_slopes: what a score loses for each key of distance, f32, [H] or [B, H].
        batch_invariant: a row's result is the same, bit for bit, whatever else is in the batch; it
            takes longer. (On the CPU it always is.)
        return_lse: also return the log-sum-exp of each row of scores, the sink among them: natural
            log, float32, [B, H, Sq].
        out: where to write: a tensor [B, Sq, H, Dv], or (o, lse) with return_lse.

    Returns:
        the output, [B, Sq, H, Dv], of q's dtype; or (output, lse). Results repeat bit for bit.

    Raises:
        KernelNotFound: no kernel suits; the message says for each candidate why.
        InvalidArgument: an argument is wrong.
    """
    if tensors.is_autocast():
        q, k_cache, v_cache, s_aux = tensors.autocast(q, k_cache, v_cache, s_aux)
    left, right = _window(causal, window_size)
    if isinstance(alibi_slopes, torch.Tensor) and alibi_slopes.dim() == 1:
        tensors.check("q", q, 4)
        alibi_slopes = alibi_slopes.expand(q.shape[0], -1)
    if softcap is None:
        raise unexpected("softcap", softcap, "a float")
    try:
        return (_chosen_alone if batch_invariant is True else _chosen)(
            (q, k_cache, v_cache, block_table, seqused_k, leftpad_k, s_aux, alibi_slopes),
            (softmax_scale, softcap, left, right, batch_invariant), (return_lse,), out,
        )  # fmt: skip
    except InvalidArgument:  # by a rule on the kernel's symbols, perhaps
        _, _, heads, width = tensors.extents("q", q, 4)
        tensors.check_heads("q", heads, "k_cache", tensors.extents("k_cache", k_cache, 4)[2])
        tensors.check_width("q", width)
        tensors.check_width("v_cache", tensors.extents("v_cache", v_cache, 4)[3])
        raise


def _window(causal: bool, window_size: tuple[int, int]) -> tuple[int, int]:
    if causal is not True and causal is not False:
        raise unexpected("causal", causal, "a bool")
    if not (
        isinstance(window_size, (tuple, list))
        and len(window_size) == 2
        and all(tensors.is_integer(keys) for keys in window_size)
    ):
        raise InvalidArgument(
            f"window_size: got {shown(window_size)}, expected two integers: the keys before and "
            "after a query's own that it sees, or -1 for all"
        )
    return window_size[0], 0 if causal else window_size[1]
