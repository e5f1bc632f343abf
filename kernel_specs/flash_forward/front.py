"""Attention: by a kernel of flash_forward that suits the arguments, or by one that is named."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from runtime import choice, finding, tensors
from runtime.errors import InvalidArgument, shown, unexpected
from runtime.front import Front

from .gradient import operator_name

_SWAPPED = (0, 2, 1, 3)
_front = Front(
    "flash_forward",
    lambda D: {"d_head": D},
    flags={"causal": False},
    permuted=dict.fromkeys(("q", "k", "v", "o"), _SWAPPED),
)
_chosen = _front.__call__  # bound once: a call of the object itself is slower


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    layout: str = "bshd",
    return_lse: bool = False,
    out: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
    **others: Any,
) -> Any:
    """Attention forward, softmax(scale * q k^T) v, with a kernel that suits the arguments.

    The kernel is that of the tuned row (<target>.tuned.yaml) which is of the device of `q`, has its
    dtype, its head dimension and `causal`, and covers the sizes. If no row does, it is the first
    that is available there and has these parameters: targets of the highest compute capability
    first, then as their specs list the kernels. The choice is kept for the process;
    `runtime.explain_choice` says what was considered.

    Args:
        q: queries, [B, Sq, H, D], or [B, H, Sq, D] if layout is "bhsd".
        k: keys, [B, Sk, Hk, D] or [B, Hk, Sk, D]; Hk divides H (grouped heads).
        v: values, like k.
        causal: query i sees keys up to i + Sk - Sq: aligned bottom-right, as FlashAttention does.
        scale: the factor on q k^T; D ** -0.5 if None.
        layout: "bshd" or "bhsd"; the latter is read through strides, nothing is copied.
        return_lse: also return the log-sum-exp of each row of scores: natural log, float32,
            [B, H, Sq] in both layouts.
        out: where to write: a tensor like q, or (o, lse) with return_lse.

    Returns:
        the output, like q in shape and dtype; or (output, lse).

    Raises:
        KernelNotFound: no kernel suits; the message says for each candidate why.
        InvalidArgument: an argument is wrong.
        TypeError: an argument is unknown; the message says what to pass instead.
    """
    if others:
        raise TypeError(_unknown(next(iter(others))))
    _check(layout)
    if tensors.is_autocast():
        q, k, v = tensors.autocast(q, k, v)
    return _chosen((q, k, v), (scale,), (return_lse,), out, (causal,), layout == "bhsd")


# What other functions of attention take, and what to do here.
_INSTEAD = {
    "mask": "no kernel takes a mask; pass causal=True for the causal one",
    "attn_mask": "no kernel takes a mask; pass causal=True for the causal one",
    "dropout_p": "no kernel drops out",
    "is_causal": "pass causal=, which aligns bottom-right; kernelmint.sdpa aligns top-left",
    "softmax_scale": "pass scale=",
    "window_size": "kernelmint.flash_attn_func has one",
    "enable_gqa": "nothing is needed: heads share keys if k has fewer",
}


def _unknown(name: str) -> str:
    how = _INSTEAD.get(name, "it takes causal, scale, layout, return_lse and out")
    return f"attention: unknown argument {name}: {how}"


def sdpa(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """torch.nn.functional.scaled_dot_product_attention by a kernel of flash_forward.

    Args:
        query: [B, H, Sq, D].
        key: [B, Hk, Sk, D].
        value: [B, Hk, Sk, D].
        attn_mask: None; no kernel takes a mask.
        dropout_p: 0; no kernel drops out.
        is_causal: query i sees keys 0 to i: aligned top-left, as PyTorch does it, where
            `attention` aligns bottom-right.
        scale: the factor on q k^T; D ** -0.5 if None.
        enable_gqa: whether Hk may be less than H, which it divides.

    Returns:
        the output, [B, H, Sq, D].

    Raises:
        KernelNotFound: no kernel suits; the message says for each candidate why.
        InvalidArgument: an argument is wrong, or asks for what no kernel does.
    """
    if attn_mask is not None:
        raise InvalidArgument(
            "attn_mask: got a mask, expected None: no kernel takes one; is_causal=True masks what "
            "lies behind each query, and F.scaled_dot_product_attention takes any mask"
        )
    if dropout_p != 0:
        raise InvalidArgument(f"dropout_p: got {shown(dropout_p)}, expected 0: no kernel drops out")
    if is_causal is not True and is_causal is not False:
        raise unexpected("is_causal", is_causal, "a bool")
    heads, kv_heads = tensors.extents("query", query, 4)[1], tensors.extents("key", key, 4)[1]
    tensors.check("value", value, 4)
    if not enable_gqa and heads != kv_heads:
        raise InvalidArgument(
            f"key: got {kv_heads} heads, expected {heads} as in query; enable_gqa=True lets heads "
            "share keys"
        )
    return _top_left(query, key, value, is_causal, scale)


def _top_left(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None
) -> torch.Tensor:
    """sdpa of [B, H, S, D]."""
    queries, keys = tensors.extents("query", q, 4)[2], tensors.extents("key", k, 4)[2]
    is_traced = tensors.is_jit_tracing()  # into a graph of any lengths, which does not branch
    if not causal or (queries == keys and not is_traced):
        return _bhsd(q, k, v, causal, scale)
    # The last keys may be behind all queries; queries behind the last key see all keys.
    queries, keys = q.shape[2], k.shape[2]
    first = _bhsd(q[:, :, :keys], k[:, :, :queries], v[:, :, :queries], True, scale)
    if not is_traced and queries < keys:
        return first
    return torch.cat([first, _bhsd(q[:, :, keys:], k, v, False, scale)], 2)


def _bhsd(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None
) -> torch.Tensor:
    o: torch.Tensor = attention(q, k, v, causal=causal, scale=scale, layout="bhsd")
    return o


def explain_choice(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    layout: str = "bshd",
) -> choice.Explanation:
    """What `attention` considers for these arguments, in its order: rows that were tuned, then
    kernels, each with why it is taken or not; last, what gives their gradients. `str()` of it is
    for people.

    Args: as `attention`'s.

    Raises:
        InvalidArgument: an argument is wrong.
    """
    _check(layout)
    swapped = layout == "bhsd"
    explained = _front.explain((q, k, v), (causal,), swapped)
    if swapped:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    try:
        gradients = f"PyTorch's aten::{operator_name(q, k, v, causal)}"
    except InvalidArgument as error:
        gradients = f"none: {error}"
    gives = choice.Considered("gradients", gradients)
    return dataclasses.replace(explained, considered=(*explained.considered, gives))


def _check(layout: object) -> None:
    if not isinstance(layout, str) or layout not in ("bshd", "bhsd"):
        raise InvalidArgument(f"layout: got {shown(layout)}, expected 'bshd' or 'bhsd'")


def forward(
    kernel: str | Mapping[str, Any] | object,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor | None = None,
    **options: Any,
) -> Any:
    """Calls one attention kernel.

    Args:
        kernel: a key or a configuration, as `runtime.kernel` takes it.
        q: queries, [B, Sq, H, D].
        k: keys, [B, Sk, Hk, D].
        v: values, [B, Sk, Hk, D].
        o: where to write the output, [B, Sq, H, D]; allocated if None.
        options: the kernel's other arguments (`scale`, `return_lse`).

    Returns:
        what the kernel returns: the output, or output and log-sum-exp.
    """
    _refuse_out(options)
    return finding.kernel(kernel)(q, k, v, out=o, **options)


def forward_timed(
    kernel: str | Mapping[str, Any] | object,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor | None = None,
    **options: Any,
) -> tuple[Any, float]:
    """Like `forward`, and waits; returns (result, milliseconds), timed as `Kernel.timed` does."""
    _refuse_out(options)
    return finding.kernel(kernel).timed(q, k, v, out=o, **options)


def _refuse_out(options: Mapping[str, Any]) -> None:
    if "out" in options:
        raise TypeError("unknown argument out: these functions take the output's memory as o")
