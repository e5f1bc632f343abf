"""The oracle of flash_attn_backward, in fp64: the forward oracle's gradients, without dropout."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..cases import inputs, options_of
from ..flash_attn_forward.reference import forward


def tuning_inputs(
    sizes: Mapping[str, int], parameters: Mapping[str, Any], generator: torch.Generator
) -> dict[str, Tensor]:
    """Makes the inputs of a forward pass, its results, and their gradient."""
    tensors = inputs(sizes, parameters, generator)
    out, lse = forward(**tensors, **options_of(parameters))
    dtype, device = tensors["q"].dtype, generator.device
    dout = torch.randn(out.shape, generator=generator, device=device).to(dtype)
    return {"dout": dout, **tensors, "out_": out.to(dtype), "softmax_lse": lse.float()}


def backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out_: Tensor,
    softmax_lse: Tensor,
    *,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    rng_state: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns dq, dk and dv, and the sums of dout * out_, as the kernels lay them: each sequence's
    rows are followed by some without a meaning, here 0."""
    with torch.enable_grad():
        q, k, v = leaves = [t.detach().double().requires_grad_() for t in (q, k, v)]
        result, _ = forward(
            q, k, v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
            alibi_slopes=alibi_slopes, **options,
        )  # fmt: skip
        gradients = torch.autograd.grad(result, leaves, dout.double())
    sums = (dout.double() * out_.double()).sum(-1).transpose(1, 2)
    if cu_seqlens_q is None:
        return *gradients, torch.nn.functional.pad(sums, (0, -sums.shape[2] % 128))
    rows = sums.new_zeros(*sums.shape[:2], sums.shape[2] + 128 * (len(cu_seqlens_q) - 1))
    for b, (begin, end) in enumerate(itertools.pairwise(cu_seqlens_q.tolist())):
        rows[:, :, begin + 128 * b : end + 128 * b] = sums[:, :, begin:end]
    return *gradients, rows
