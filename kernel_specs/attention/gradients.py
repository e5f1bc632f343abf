"""The gradients of attention by PyTorch's own operators, on our output and its log-sum-exp, where
no kernel of flash_backward or flash_prefill_backward gives them.

On the CPU it is PyTorch's flash attention, for equal lengths. On GPUs it is cuDNN's operator for
equal lengths if PyTorch would use cuDNN for these tensors, else FlashAttention-2's, which takes
packed sequences.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch

from runtime.errors import InvalidArgument
from runtime.operators import refused

Tensors = Mapping[str, torch.Tensor]
_Operator = Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]

CUDNN = "_scaled_dot_product_cudnn_attention_backward"
FLASH = "_flash_attention_backward"
CPU = "_scaled_dot_product_flash_attention_for_cpu_backward"


def operator_name(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, deterministic: bool = False
) -> str:
    """Names the operator of torch.ops.aten that gives the gradients of a call of `attention`.

    Args:
        q: queries, [B, Sq, H, D].
        k: keys, [B, Sk, Hk, D].
        v: values, [B, Sk, Hk, D].
        causal: whether the mask is on.
        deterministic: whether gradients must be the same, bit for bit, each time.

    Raises:
        InvalidArgument: PyTorch has none for these arguments.
    """
    d_head = int(q.shape[-1])
    if q.device.type == "cpu":
        names = [CPU]
    else:
        names = [FLASH] if d_head <= 256 and q.dtype != torch.float32 else []
        # cuDNN aligns the causal mask to the top left: ours for equal lengths, or once the rows
        # that see no key are left out.
        is_aligned = not causal or q.shape[1] >= k.shape[1]
        if not deterministic and is_aligned and _suits_cudnn(q, k, v, causal):
            names.insert(0, CUDNN)
        if deterministic and not torch.are_deterministic_algorithms_enabled():
            raise InvalidArgument(
                f"deterministic: got True for head dimension {d_head} on {q.device}, whose "
                "gradients are PyTorch's: call torch.use_deterministic_algorithms(True), which its "
                "operator reads"
            )
    for name in names:
        if hasattr(torch.ops.aten, name):
            return name
    raise InvalidArgument(
        f"q: requires_grad is set and grad mode is on, but PyTorch {torch.__version__} has no "
        f"backward of attention for {q.dtype}, head dimension {d_head} on {q.device}; call it "
        "under torch.no_grad()"
    )


def _suits_cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> bool:
    from torch.backends.cuda import SDPAParams, can_use_cudnn_attention

    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    params = SDPAParams(q, k, v, None, 0.0, causal, q.shape[1] != k.shape[1])
    return bool(can_use_cudnn_attention(params))


def attention_gradient(
    parameters: Mapping[str, Any], inputs: Tensors, scalars: Mapping[str, Any]
) -> Callable[[Tensors, Tensors, Tensors], Tensors]:
    """Returns the backward of one call of flash_forward: a function of inputs, outputs and the
    outputs' gradients.

    The backward returns dq [B, Sq, H, D], dk and dv [B, Sk, Hk, D], in the inputs' dtype.

    Raises:
        InvalidArgument: PyTorch has no operator for these arguments.
    """
    causal = bool(parameters["causal"])
    repeats = bool(scalars["deterministic"])
    name = operator_name(inputs["q"], inputs["k"], inputs["v"], causal, repeats)
    scale = scalars["scale"]

    def backward(inputs: Tensors, outputs: Tensors, gradients: Tensors) -> Tensors:
        q, k, v = inputs["q"], inputs["k"], inputs["v"]
        o, lse, do = outputs["o"], outputs["lse"], gradients["o"]
        # Rows that see no key: their output is zero whatever q, k and v are.
        empty = max(0, q.shape[1] - k.shape[1]) if causal else 0
        if 0 in (*q.shape, *k.shape) or empty == q.shape[1]:
            return {name: torch.zeros_like(t) for name, t in inputs.items()}
        if empty:
            q, o, do, lse = q[:, empty:], o[:, empty:], do[:, empty:], lse[..., empty:].contiguous()
        if do.stride() != o.stride():  # an expanded sum's, or one that a compiled graph laid out
            do = torch.empty_like(o).copy_(do)
        with torch.no_grad():
            dq, dk, dv = _RUN[name](do, q, k, v, o, lse, causal, scale)
        if empty:
            dq = torch.nn.functional.pad(dq, (0, 0, 0, 0, empty, 0))
        named = {"q": dq, "k": dk, "v": dv}
        if not torch.is_grad_enabled():
            return named
        message = (
            f"flash_forward: its gradients are PyTorch's aten::{name}'s, which has none: they "
            "cannot be differentiated again"
        )
        return refused(message, named, (do, q, k, v))

    return backward


def _cpu(do: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, causal: bool, scale: Any) -> Any:
    seq_len_q, seq_len_k, group = q.shape[1], k.shape[1], q.shape[2] // k.shape[2]
    mask = None
    if causal and seq_len_q != seq_len_k:
        hidden = torch.ones(seq_len_q, seq_len_k, dtype=torch.bool, device=q.device)
        hidden = hidden.triu(seq_len_k - seq_len_q + 1)
        mask = torch.zeros_like(hidden, dtype=q.dtype).masked_fill(hidden, float("-inf"))
    if group > 1:  # this operator takes as many heads of keys as of queries
        k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    heads_first = (t.transpose(1, 2) for t in (do, q, k, v, o))
    gradients = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        *heads_first, lse, 0.0, causal and mask is None, attn_mask=mask, scale=scale
    )
    dq, dk, dv = (t.transpose(1, 2) for t in gradients)
    if group > 1:
        dk, dv = (t.unflatten(2, (-1, group)).sum(3) for t in (dk, dv))
    return dq, dk, dv


def _cudnn(do: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, causal: bool, scale: Any) -> Any:
    heads_first = (t.transpose(1, 2) for t in (do, q, k, v, o))
    unused = torch.zeros((), dtype=torch.int64, device=q.device)  # dropout's state
    dq_dk_dv = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        *(*heads_first, lse.unsqueeze(-1), unused, unused, None, None, None),
        *(q.shape[1], k.shape[1], 0.0, causal),
        scale=scale,
    )
    return (t.transpose(1, 2) for t in dq_dk_dv)


def _flash(do: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, causal: bool, scale: Any) -> Any:
    unused = torch.empty(2, dtype=torch.uint64, device=q.device)  # dropout's state
    return torch.ops.aten._flash_attention_backward(
        *(do, q, k, v, o, lse, None, None, q.shape[1], k.shape[1], 0.0, causal),
        *(unused, unused[:0]),
        scale=scale,
    )


_RUN: Mapping[str, _Operator] = {CUDNN: _cudnn, FLASH: _flash, CPU: _cpu}


_LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "leftpad_k")


def prefill_gradient(
    parameters: Mapping[str, Any], inputs: Tensors, scalars: Mapping[str, Any]
) -> Callable[[Tensors, Tensors, Tensors], Tensors]:
    """Returns the backward of one call of flash_prefill: a function of inputs, outputs and the
    outputs' gradients.

    The backward returns the gradients of q, k and v, and of s_aux if there is one.

    Raises:
        InvalidArgument: PyTorch has no operator for these arguments.
    """
    q, v = inputs["q"], inputs["v"]
    softcap = scalars["softcap"]
    reasons = {
        "pages (block_table, or cache_batch_idx)": "block_table" in inputs,
        "softcap": 0 < softcap < math.inf,
        "alibi_slopes": "alibi_slopes" in inputs,
        f"a head dimension of v, {v.shape[3]}, that is not q's, {q.shape[3]},": (
            q.shape[3] != v.shape[3]
        ),
        f"a tensor on {q.device}": q.is_cuda and not _is_there(),
    }
    for reason, is_so in reasons.items():
        if is_so:
            raise InvalidArgument(
                f"q: requires_grad is set and grad mode is on, but with {reason} neither a kernel "
                f"here nor PyTorch {torch.__version__} has a backward of attention that would do; "
                "call it under torch.no_grad()"
            )
    if scalars["deterministic"] and not torch.are_deterministic_algorithms_enabled():
        raise InvalidArgument(
            f"deterministic: got True for head dimension {q.shape[3]} on {q.device}, where the "
            "gradients of such calls are PyTorch's: call torch.use_deterministic_algorithms(True), "
            "which its operator reads"
        )
    window: dict[str, Any] = {
        name: -1 if scalars[name] is None else scalars[name]
        for name in ("window_left", "window_right")
    }
    scale = scalars["softmax_scale"]

    def backward(inputs: Tensors, outputs: Tensors, gradients: Tensors) -> Tensors:
        do, o, lse = gradients["o"], outputs["o"], outputs["lse"]
        q, k, v = (inputs[name] for name in "qkv")
        lengths: dict[str, Any] = {name: inputs.get(name) for name in _LENGTHS}
        each = packed_backward(do, q, k, v, o, lse, **lengths, **window, scale=scale)
        named = dict(zip("qkv", each, strict=True))
        if "s_aux" in inputs:
            bounds = _bounds(q, inputs.get("cu_seqlens_q"), inputs.get("seqused_q"), None)
            named["s_aux"] = _of_sinks(inputs["s_aux"], do, o, lse, _unused(bounds, q))
        return named

    return backward


@functools.cache
def _is_there() -> bool:
    """Returns whether PyTorch's operator is known to take [H, total] log-sum-exps: its varlen_attn,
    of 2.10 and later, passes them."""
    return importlib.util.find_spec("torch.nn.attention.varlen") is not None


def _of_sinks(
    s_aux: torch.Tensor, do: torch.Tensor, o: torch.Tensor, lse: torch.Tensor, unused: torch.Tensor
) -> torch.Tensor:
    """Returns the gradient of s_aux. A sink has a probability and no value: only the sum of all
    probabilities' gradients is left."""
    share = (s_aux.float()[:, None] - lse).exp()  # [N, H, Tq]
    each = share * (do.float() * o).sum(-1).transpose(1, 2)
    return -each.masked_fill(unused[:, None], 0.0).sum((0, 2)).to(s_aux.dtype)


def packed_backward(
    do: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor | None,
    seqused_q: torch.Tensor | None,
    seqused_k: torch.Tensor | None,
    leftpad_k: torch.Tensor | None,
    window_left: int,
    window_right: int,
    scale: float | None,
) -> tuple[torch.Tensor, ...]:
    """Returns dq, dk and dv by aten::_flash_attention_backward, which reads no length on the host.

    The operator takes sequences that follow one another. So the rows of no sequence, before each
    and after the last, are sequences here, and their gradients are overwritten. If a row sees no
    key, the log-sum-exp is inf: its probabilities are 0, unless a key is NaN.
    """
    if not q.numel() or not k.numel():
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    bounds_q = _bounds(q, cu_seqlens_q, seqused_q, None)
    bounds_k = _bounds(k, cu_seqlens_k, seqused_k, leftpad_k)
    sums = lse.transpose(0, 1).flatten(1)  # [H, total]
    unused = torch.empty(0, dtype=torch.uint64, device=q.device)  # dropout's
    dq, dk, dv = torch.ops.aten._flash_attention_backward(
        *(t.flatten(0, 1) for t in (do, q, k, v, o)),
        sums.masked_fill(sums.isneginf(), float("inf")),
        *(bounds_q, bounds_k, q.shape[1], k.shape[1], 0.0, False, unused, unused),
        scale=scale, window_size_left=window_left, window_size_right=window_right,
    )  # fmt: skip
    dq, dk, dv = (each.view(t.shape) for each, t in zip((dq, dk, dv), (q, k, v), strict=True))
    dq.masked_fill_(lse.isneginf().transpose(1, 2).unsqueeze(3), 0)
    for gradient, bounds in ((dq, bounds_q), (dk, bounds_k), (dv, bounds_k)):
        gradient.masked_fill_(_unused(bounds, gradient)[:, :, None, None], 0)
    return dq, dk, dv


def _bounds(
    rows: torch.Tensor,
    cu_seqlens: torch.Tensor | None,
    seqused: torch.Tensor | None,
    leftpad: torch.Tensor | None,
) -> torch.Tensor:
    """Returns where the parts of a list of rows begin, and where the last one ends, int32, two for
    each sequence and two more: unused and used parts take turns."""
    total = rows.shape[0] * rows.shape[1]
    places = cu_seqlens
    if places is None:
        places = torch.arange(len(rows) + 1, dtype=torch.int32, device=rows.device) * rows.shape[1]
    begins, ends = places[:-1], places[1:]
    if seqused is not None:
        ends = begins + seqused.clamp(min=0).minimum(ends - begins)
    if leftpad is not None:
        begins = begins + leftpad.clamp(min=0).minimum(ends - begins)
    bounds = torch.stack((begins, ends), 1).flatten().clamp(0, total)
    return torch.nn.functional.pad(torch.nn.functional.pad(bounds, (1, 0)), (0, 1), value=total)


def _unused(bounds: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Marks the rows of no sequence, bool, [N, T]."""
    places = torch.arange(rows.shape[0] * rows.shape[1], dtype=torch.int32, device=rows.device)
    part = torch.bucketize(places, bounds[1:], right=True)
    return (part % 2 == 0).view(rows.shape[:2])


def no_second_derivative(
    parameters: Mapping[str, Any], inputs: Tensors, scalars: Mapping[str, Any]
) -> Callable[..., NoReturn]:
    """Returns a backward of attention's gradients that refuses: a graph that was recorded with
    these gradients in it runs on inputs that require gradients."""

    def backward(*tensors: Tensors) -> NoReturn:
        raise RuntimeError(
            "no kernel differentiates attention's gradients: they cannot be differentiated again"
        )

    return backward
