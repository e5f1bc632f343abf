"""The gradients of attention: PyTorch's own operators, which take our output and its log-sum-exp.

Until kernels of ours replace them. On a GPU cuDNN's operator is taken if PyTorch would use cuDNN
for these tensors, else FlashAttention-2's; on the CPU PyTorch's flash attention.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

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
    """The operator of torch.ops.aten that gives the gradients of a call of `attention`.

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
    """The backward of one call: a function of inputs, outputs and the outputs' gradients.

    It returns dq [B, Sq, H, D], dk and dv [B, Sk, Hk, D], in the inputs' dtype.

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
        found = {"q": dq, "k": dk, "v": dv}
        if not torch.is_grad_enabled():
            return found
        message = (
            f"flash_forward: its gradients are PyTorch's aten::{name}'s, which has none: they "
            "cannot be differentiated again"
        )
        return refused(message, found, (do, q, k, v))

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
    found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        *heads_first, lse, 0.0, causal and mask is None, attn_mask=mask, scale=scale
    )
    dq, dk, dv = (t.transpose(1, 2) for t in found)
    if group > 1:
        dk, dv = (t.unflatten(2, (-1, group)).sum(3) for t in (dk, dv))
    return dq, dk, dv


def _cudnn(do: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, causal: bool, scale: Any) -> Any:
    heads_first = (t.transpose(1, 2) for t in (do, q, k, v, o))
    unused = torch.zeros((), dtype=torch.int64, device=q.device)  # dropout's state
    found = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        *(*heads_first, lse.unsqueeze(-1), unused, unused, None, None, None),
        *(q.shape[1], k.shape[1], 0.0, causal),
        scale=scale,
    )
    return (t.transpose(1, 2) for t in found)


def _flash(do: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, causal: bool, scale: Any) -> Any:
    unused = torch.empty(2, dtype=torch.uint64, device=q.device)  # dropout's state
    return torch.ops.aten._flash_attention_backward(
        *(do, q, k, v, o, lse, None, None, q.shape[1], k.shape[1], 0.0, causal),
        *(unused, unused[:0]),
        scale=scale,
    )


_RUN: Mapping[str, _Operator] = {CUDNN: _cudnn, FLASH: _flash, CPU: _cpu}
