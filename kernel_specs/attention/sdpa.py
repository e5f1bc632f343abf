"""torch.nn.functional.scaled_dot_product_attention by the group's kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from runtime import tensors
from runtime.errors import InvalidArgument, unexpected

from .flash_attn import flash_attn_func
from .front import attention


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
    """Computes torch.nn.functional.scaled_dot_product_attention by the kernels of `attention`, or,
    if values have a head dimension of their own, by those of `flash_attn_func`.

    Any number of dimensions may come before Sq and Sk; they are broadcast: heads, too, but with
    enable_gqa. Only with more than four dimensions broadcast tensors may be copied.

    Args:
        query: [B, H, Sq, D].
        key: [B, Hk, Sk, D].
        value: [B, Hk, Sk, Dv].
        attn_mask: None; no kernel takes a mask.
        dropout_p: how probably a probability is dropped, as `attention` has it.
        is_causal: query i sees keys 0 to i: aligned top-left, as PyTorch does it, where
            `attention` aligns bottom-right.
        scale: the factor on q k^T; D ** -0.5 if None.
        enable_gqa: whether Hk may be less than H, which it divides.

    Returns:
        the output, [B, H, Sq, Dv].

    Raises:
        KernelNotFound: no kernel suits; the message says for each candidate why.
        InvalidArgument: an argument is wrong, or asks for what no kernel does.
    """
    if attn_mask is not None:
        raise InvalidArgument(
            "attn_mask: got a mask, expected None: no kernel takes one; is_causal=True masks what "
            "lies behind each query, and F.scaled_dot_product_attention takes any mask"
        )
    if is_causal is not True and is_causal is not False:
        raise unexpected("is_causal", is_causal, "a bool")
    if _is_common(query, key, value, is_causal):
        return _bhsd(query, key, value, is_causal, scale, dropout_p)
    of_q, of_k, of_v = _shapes(query, key, value, enable_gqa)
    attend = _bhsd if of_q[-1] == of_v[-1] else _of_wide_values
    own = 3 if enable_gqa else 2
    heads = [shape[-3] for shape in (of_q, of_k, of_v) if len(shape) > 2]
    if any(count == 0 for count in heads) and all(count <= 1 for count in heads):
        q, k, v = _broadcast((query, key, value), own)
        return q @ k.mT @ v  # an output without elements
    if len(of_q) == 4 and of_q[:-own] == of_k[:-own] == of_v[:-own]:
        return _top_left(attend, query, key, value, is_causal, scale, dropout_p)
    q, k, v = _broadcast((query, key, value), own)
    rank = q.dim()
    if rank > 4:
        batches = q.shape[:-3]
        q, k, v = (t.flatten(0, rank - 4) for t in (q, k, v))
        o = _top_left(attend, q, k, v, is_causal, scale, dropout_p)
        return o.reshape(*batches, *o.shape[1:])
    q, k, v = (t[(None,) * (4 - rank)] for t in (q, k, v))
    return _top_left(attend, q, k, v, is_causal, scale, dropout_p)[(0,) * (4 - rank)]


def _is_common(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool
) -> bool:
    """Returns whether a call is of the common kind, which needs no more checks: four dimensions, as
    many heads of keys as of queries, and under a mask as many queries as keys."""
    if not type(query) is type(key) is type(value) is torch.Tensor or query.is_nested:
        return False
    if key.is_nested or value.is_nested:
        return False
    of_q, of_k = query.shape, key.shape
    return (
        len(of_q) == 4
        and type(of_q[0]) is int  # no symbol's, nor a trace's
        and of_k == value.shape
        and of_q[0] == of_k[0]
        and of_q[1] == of_k[1] != 0
        and of_q[3] == of_k[3]
        and query.dtype is key.dtype is value.dtype
        and (not is_causal or of_q[2] == of_k[2])
    )


def _shapes(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool
) -> list[tuple[Any, ...]]:
    """Returns the shapes of sdpa's inputs. Raises InvalidArgument for one that does not suit the
    others."""
    shapes = []
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        rank = tensor.dim() if isinstance(tensor, torch.Tensor) else 4
        shapes.append(tensors.extents(name, tensor, rank))
        if rank < 2:
            raise InvalidArgument(f"{name}: got shape {list(shapes[-1])}, expected [..., S, D]")
        if tensor.dtype != query.dtype and not tensors.is_autocast():
            raise InvalidArgument(
                f"{name}: got dtype {tensor.dtype}, expected {query.dtype} as query"
            )
    of_q, of_k, of_v = shapes
    if of_q[-1] != of_k[-1]:
        raise _unlike("key", of_k, f"{of_q[-1]} columns as in query")
    if of_v[-2] != of_k[-2]:
        raise _unlike("value", of_v, f"{of_k[-2]} rows, one for each of key")
    if enable_gqa and of_v[-3:-2] != of_k[-3:-2]:
        raise _unlike("value", of_v, "as many heads as in key")
    if enable_gqa and len(of_q) > 2 and len(of_k) > 2:
        tensors.check_heads("query", of_q[-3], "key", of_k[-3])
    if not enable_gqa and len(of_q) > 2 and len(of_k) > 2:
        heads, kv_heads = of_q[-3], of_k[-3]
        if heads != kv_heads and heads != 1 and kv_heads != 1:
            raise InvalidArgument(
                f"key: got {kv_heads} heads, expected {heads} as in query; enable_gqa=True lets "
                "heads share keys"
            )
    return shapes


def _unlike(name: str, shape: tuple[Any, ...], expected: str) -> InvalidArgument:
    return InvalidArgument(f"{name}: got shape {list(shape)}, expected {expected}")


def _broadcast(inputs: tuple[torch.Tensor, ...], own: int) -> list[torch.Tensor]:
    """Returns q, k and v, expanded in all dimensions but the last `own`."""
    shapes = [tensor.shape[:-own] for tensor in inputs]
    try:
        common = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]  # PyTorch's
    except RuntimeError:
        got = " and ".join(str(list(tensor.shape)) for tensor in inputs)
        raise InvalidArgument(
            f"query, key, value: got shapes {got}, expected batches that can be broadcast"
        ) from None
    return [tensor.expand(*common, *tensor.shape[-own:]) for tensor in inputs]


def _top_left(
    attend: Callable[..., torch.Tensor],
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    *options: Any,
) -> torch.Tensor:
    """Computes sdpa of [B, H, S, D] by `attend`, which aligns bottom-right."""
    if not causal:
        return attend(q, k, v, False, *options)
    queries, keys = q.shape[2], k.shape[2]
    is_traced = tensors.is_jit_tracing()  # the graph serves any lengths, and does not branch
    if not is_traced and queries == keys:
        return attend(q, k, v, True, *options)
    # The last keys may come after all queries; queries after the last key see all keys.
    first = attend(q[:, :, :keys], k[:, :, :queries], v[:, :, :queries], True, *options)
    if not is_traced and queries < keys:
        return first
    return torch.cat([first, attend(q[:, :, keys:], k, v, False, *options)], 2)


def _bhsd(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    scale: float | None,
    dropout_p: float,
) -> torch.Tensor:
    options: dict[str, Any] = {"causal": causal, "scale": scale, "dropout_p": dropout_p}
    o: torch.Tensor = attention(q, k, v, layout="bhsd", **options)
    return o


def _of_wide_values(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    scale: float | None,
    dropout_p: float,
) -> torch.Tensor:
    """Computes `_bhsd`'s attention of values whose head dimension is not q's."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    o: torch.Tensor = flash_attn_func(q, k, v, dropout_p, scale, causal)
    return o.transpose(1, 2)
