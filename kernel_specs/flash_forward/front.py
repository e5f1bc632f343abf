"""Attention without a key: picks a kernel of flash_forward that suits the arguments."""

from __future__ import annotations

from typing import Any

import torch

from runtime import catalog, choice, operators, tensors
from runtime.errors import InvalidArgument, shown
from runtime.handle import Kernel

_FAMILY = "flash_forward"
_call_operator = operators.caller(_FAMILY)
_chosen: dict[tuple[torch.device, torch.dtype, int, bool], Kernel] = {}


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

    The kernel is the first that is available on the device of `q` and has its dtype, its head
    dimension and `causal`: targets of the highest compute capability first, then as their specs
    list the kernels. The choice is kept for the process.

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
    if not isinstance(layout, str) or layout not in ("bshd", "bhsd"):
        raise InvalidArgument(f"layout: got {shown(layout)}, expected 'bshd' or 'bhsd'")
    if causal is not True and causal is not False:
        raise InvalidArgument(f"causal: got a {type(causal).__name__}, expected a bool")
    if layout == "bhsd":
        q, k, v = _swapped("q", q), _swapped("k", k), _swapped("v", v)
        if isinstance(out, (tuple, list)):
            given = (_swapped("out", out[0]), *out[1:]) if out else ()
        elif out is not None:
            given = _swapped("out", out)
    result: Any
    if torch.compiler.is_dynamo_compiling():
        key = _search(q.device, q.dtype, int(q.shape[3]), causal)
        result = _call_operator(key, (q, k, v), (scale,), (return_lse,), given)
    else:
        result = _choose(q, causal)(q, k, v, scale=scale, return_lse=return_lse, out=given)
    if layout == "bshd":
        return result
    if isinstance(out, torch.Tensor):
        return out
    o = result[0] if return_lse else result
    o = o.transpose(1, 2) if out is None else out[0]
    return (o, result[1]) if return_lse else o


def _choose(q: torch.Tensor, causal: bool) -> Kernel:
    try:
        return _chosen[q.device, q.dtype, q.shape[3], causal]
    except Exception:  # not met before, or wrong in one of many ways
        pass
    d_head = int(tensors.extents("q", q, 4)[3])
    kernel = catalog.kernel(_search(q.device, q.dtype, d_head, causal))
    return _chosen.setdefault((q.device, q.dtype, d_head, causal), kernel)


def _swapped(name: str, tensor: torch.Tensor) -> torch.Tensor:
    tensors.check(name, tensor, 4)
    try:
        return tensor.transpose(1, 2)
    except (RuntimeError, TypeError) as error:  # without memory, or a subclass that cannot
        reason = str(error).partition("\n")[0]
        raise InvalidArgument(f"{name}: cannot be read as [B, S, H, D]: {reason}") from None


@choice.traced_as_constant
def _search(device: torch.device, dtype: torch.dtype, d_head: int, causal: bool) -> str:
    name = catalog.dtype_name(dtype) or str(dtype)
    wanted = {"dtype": name, "d_head": d_head, "causal": causal}
    return choice.choose(_FAMILY, device, wanted).info.key
