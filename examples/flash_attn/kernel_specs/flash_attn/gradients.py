"""The gradients of attention, by flash_attn_backward: of the forward pass and of its split form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

import kernelmint

Tensors = Mapping[str, torch.Tensor]
_SCALARS = (
    "softmax_scale", "softcap", "window_left", "window_right", "max_seqlen_q", "max_seqlen_k",
    "deterministic",
)  # fmt: skip
HEAD_DIMS = (32, 64, 96, 128, 192, 256)


def gradient(
    parameters: Mapping[str, Any], inputs: Tensors, scalars: Mapping[str, Any]
) -> Callable[[Tensors, Tensors, Tensors], Tensors]:
    """The backward of one call. It returns the gradients of q [B, Sq, H, D], k and v
    [B, Sk, Hk, D], in their dtype."""

    def backward(inputs: Tensors, outputs: Tensors, gradients: Tensors) -> Tensors:
        q, k, slopes = inputs["q"], inputs["k"], inputs.get("alibi_slopes")
        dout = gradients["out_"]
        dropout = bool(parameters.get("dropout", False))
        lengths = (q.shape[1], k.shape[1])
        head_dim_is_whole = q.shape[3] in HEAD_DIMS and slopes is None
        is_packed = inputs.get("cu_seqlens_q") is not None
        dq, dk, dv, _ = kernelmint.flash_attn_backward(
            dout if dout.stride(-1) == 1 else dout.contiguous(),
            *(inputs["q"], inputs["k"], inputs["v"], outputs["out_"], outputs["softmax_lse"]),
            *(inputs.get("cu_seqlens_q"), inputs.get("cu_seqlens_k"), slopes),
            outputs["rng_state"] if dropout else None,
            p_dropout=scalars.get("p_dropout", 0.0),
            **{name: scalars[name] for name in _SCALARS},
            **{name: parameters[name] for name in ("causal", "local", "capped")},
            dropout=dropout,
            even_k=head_dim_is_whole,
            even_mn=head_dim_is_whole
            and q.shape[3] <= 128
            and not parameters["local"]
            and not is_packed
            and all(length % 128 == 0 for length in lengths),
        )
        if k.shape[2] != q.shape[2]:  # the query heads that share one
            dk, dv = (t.unflatten(2, (k.shape[2], -1)).sum(3) for t in (dk, dv))
        return {"q": dq, "k": dk, "v": dv}

    return backward
