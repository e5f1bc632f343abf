"""Gradients that no kernel here gives: of means and products, and of least and greatest values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

import kernelmint

Tensors = Mapping[str, torch.Tensor]
Backward = Callable[[Tensors, Tensors, Tensors], Tensors]


def of_mean(parameters: Mapping[str, Any], inputs: Tensors, scalars: Any) -> Backward:
    """Returns the gradient [B, N, K] divided by the number of values of each mean, at each of
    them."""

    def backward(inputs: Tensors, outputs: Tensors, gradients: Tensors) -> Tensors:
        src, gradient = inputs["src"], gradients["result"]
        if "indptr" in inputs:
            counts = inputs["indptr"].diff(dim=1)[:, :, None].to(src.dtype)
            where, options = inputs["indptr"], {"E": src.shape[1], "zeroed": True}
            gather = kernelmint.torch_scatter_gather_csr
        else:
            ones, where, options = src.new_ones(*src.shape[:2], 1), inputs["index"], {}
            counts = kernelmint.torch_scatter_segment_coo(ones, where, N=gradient.shape[1])
            gather = kernelmint.torch_scatter_gather_coo
        return {"src": gather((gradient / counts.clamp(1)).contiguous(), where, **options)}

    return backward


def of_product(parameters: Mapping[str, Any], inputs: Tensors, scalars: Any) -> Backward:
    """Returns upstream's gradient: the product divided by the value, and 0 for 0 / 0."""

    def backward(inputs: Tensors, outputs: Tensors, gradients: Tensors) -> Tensors:
        quotient = (gradients["result"] * outputs["result"]).gather(1, inputs["index"]) / inputs[
            "src"
        ]
        return {"src": quotient.masked_fill(quotient.isnan(), 0)}

    return backward


def of_arg(parameters: Mapping[str, Any], inputs: Tensors, scalars: Any) -> Backward:
    """Moves the gradient [B, N, K] to the place of each least or greatest value."""

    def backward(inputs: Tensors, outputs: Tensors, gradients: Tensors) -> Tensors:
        batches, extent, columns = inputs["src"].shape
        # The last row takes the gradients of results without a value.
        scattered = gradients["result"].new_zeros(batches, extent + 1, columns)
        return {"src": scattered.scatter_(1, outputs["arg"], gradients["result"])[:, :-1]}

    return backward
