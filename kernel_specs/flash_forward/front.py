"""Attention without a key: picks a kernel of flash_forward that suits the arguments."""

from __future__ import annotations

from typing import Any

import torch

from runtime import catalog, choice, operators, tensors
from runtime.errors import InvalidArgument, shown
from runtime.handle import Kernel

_FAMILY = "flash_forward"
_call_operator = operators.caller(_FAMILY)
_chosen: dict[tuple[torch.device, torch.dtype, int, bool], Kernel | None] = {}  # None: by sizes
_chosen_by_sizes: dict[tuple[object, ...], Kernel] = {}
_MOST_SIZES = 4096  # kept at one time


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
) -> Any:
    """Attention forward, softmax(scale * q k^T) v, with a kernel that suits the arguments.

    The kernel is that of the tuned row (<target>.tuned.yaml) which is of the device of `q`, has its
    dtype, its head dimension and `causal`, and covers the sizes. Where no row does, it is the first
    that is available there and has these parameters: targets of the highest compute capability
    first, then as their specs list the kernels. The choice is kept for the process;
    `runtime.explain_choice` says what was considered.

    Args:
        q: queries, [B, Sq, H, D], or [B, H, Sq, D] where layout is "bhsd".
        k: keys, [B, Sk, Hk, D] or [B, Hk, Sk, D]; Hk divides H (grouped heads).
        v: values, like k.
        causal: query i sees keys up to i + Sk - Sq: aligned bottom-right, as FlashAttention does.
        scale: the factor on q k^T; D ** -0.5 where None.
        layout: "bshd" or "bhsd"; the latter is read through strides, nothing is copied.
        return_lse: also return the log-sum-exp of each row of scores: natural log, float32,
            [B, H, Sq] in both layouts.
        out: where to write: a tensor like q, or (o, lse) with return_lse.

    Returns:
        the output, like q in shape and dtype; or (output, lse).

    Raises:
        KernelNotFound: no kernel suits; the message says for each candidate why.
        InvalidArgument: an argument is wrong.
    """
    given = out
    _check(causal, layout)
    if layout == "bhsd":
        q, k, v = _swapped("q", q), _swapped("k", k), _swapped("v", v)
        if isinstance(out, (tuple, list)):
            given = (_swapped("out", out[0]), *out[1:]) if out else ()
        elif out is not None:
            given = _swapped("out", out)
    result: Any
    if torch.compiler.is_dynamo_compiling():
        # Compared, not converted: where it is dynamic, the graph becomes one for this value.
        d_head = next((d for d in _head_dims() if q.shape[3] == d), q.shape[3])
        kind = (q.device, q.dtype, d_head, causal)
        rows = _ranges(*kind)
        key = _search(*kind, choice.covered(rows, _sizes(q, k)) if rows else ())
        result = _call_operator(key, (q, k, v), (scale,), (return_lse,), given)
    else:
        result = _choose(q, k, causal)(q, k, v, scale=scale, return_lse=return_lse, out=given)
    if layout == "bshd":
        return result
    if isinstance(out, torch.Tensor):
        return out
    o = result[0] if return_lse else result
    o = o.transpose(1, 2) if out is None else out[0]
    return (o, result[1]) if return_lse else o


def explain_choice(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    layout: str = "bshd",
) -> choice.Explanation:
    """What `attention` considers for these arguments, in its order: rows that were tuned, then
    kernels, each with why it is taken or not. `str()` of it is for people.

    Args: as `attention`'s; `v` does not matter.

    Raises:
        InvalidArgument: an argument is wrong.
    """
    _check(causal, layout)
    if layout == "bhsd":
        q, k = _swapped("q", q), _swapped("k", k)
    d_head = int(tensors.extents("q", q, 4)[3])
    tensors.extents("k", k, 4)
    wanted = _wanted(q.dtype, d_head, causal)
    return choice.explain(_FAMILY, q.device, wanted, _sizes(q, k))


def _check(causal: bool, layout: str) -> None:
    if not isinstance(layout, str) or layout not in ("bshd", "bhsd"):
        raise InvalidArgument(f"layout: got {shown(layout)}, expected 'bshd' or 'bhsd'")
    if causal is not True and causal is not False:
        raise InvalidArgument(f"causal: got a {type(causal).__name__}, expected a bool")


def _choose(q: torch.Tensor, k: torch.Tensor, causal: bool) -> Kernel:
    try:
        kernel = _chosen[q.device, q.dtype, q.shape[3], causal]
        if kernel is not None:
            return kernel
        return _chosen_by_sizes[q.device, q.dtype, q.shape, k.shape, causal]
    except Exception:  # not met before, or wrong in one of many ways
        pass
    d_head = int(tensors.extents("q", q, 4)[3])  # or what q is, where it is no tensor
    kind = (q.device, q.dtype, d_head, causal)
    rows = _ranges(*kind)
    if not rows:
        kernel = catalog.kernel(_search(*kind, ()))
        _chosen[kind] = kernel
        return kernel
    tensors.extents("k", k, 4)
    kernel = catalog.kernel(_search(*kind, choice.covered(rows, _sizes(q, k))))
    _chosen[kind] = None
    if any(isinstance(extent, torch.SymInt) for extent in (*q.shape, *k.shape)):
        return kernel  # a trace, whose sizes are not known yet
    if len(_chosen_by_sizes) >= _MOST_SIZES:
        _chosen_by_sizes.clear()
    _chosen_by_sizes[q.device, q.dtype, q.shape, k.shape, causal] = kernel
    return kernel


def _sizes(q: torch.Tensor, k: torch.Tensor) -> dict[str, int]:
    """The family's symbols."""
    batch, seq_len_q, heads, d_head = q.shape
    _, seq_len_k, kv_heads, _ = k.shape
    return {"B": batch, "Sq": seq_len_q, "Sk": seq_len_k, "H": heads, "Hk": kv_heads, "D": d_head}


def _swapped(name: str, tensor: torch.Tensor) -> torch.Tensor:
    tensors.check(name, tensor, 4)
    try:
        return tensor.transpose(1, 2)
    except (RuntimeError, TypeError) as error:  # without memory, or a subclass that cannot
        reason = str(error).partition("\n")[0]
        raise InvalidArgument(f"{name}: cannot be read as [B, S, H, D]: {reason}") from None


def _wanted(dtype: torch.dtype, d_head: int, causal: bool) -> dict[str, Any]:
    name = catalog.dtype_name(dtype) or str(dtype)
    return {"dtype": name, "d_head": d_head, "causal": causal}


@choice.traced_as_constant
def _head_dims() -> tuple[int, ...]:
    found = (info.parameters["d_head"] for info in catalog.kernels(_FAMILY))
    return tuple(dict.fromkeys(found))


@choice.traced_as_constant
def _ranges(device: torch.device, dtype: torch.dtype, d_head: int, causal: bool) -> choice.Ranges:
    return choice.ranges(_FAMILY, device, _wanted(dtype, d_head, causal))


@choice.traced_as_constant
def _search(
    device: torch.device,
    dtype: torch.dtype,
    d_head: int,
    causal: bool,
    covering: tuple[int, ...],
) -> str:
    wanted = _wanted(dtype, d_head, causal)
    return choice.choose(_FAMILY, device, wanted, covering=covering).info.key
