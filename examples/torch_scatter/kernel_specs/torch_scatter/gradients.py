"""What the families' gradients share."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

import kernelmint

Tensors = Mapping[str, torch.Tensor]
Backward = Callable[[Tensors, Tensors, Tensors], Tensors]


def of_arg(inputs: Tensors, outputs: Tensors, gradients: Tensors) -> Tensors:
    """Of a least or greatest: the gradient [B, N, K] goes to where it was."""
    src = inputs["src"]
    found = src.new_zeros(src.shape[0], src.shape[1] + 1, src.shape[2])  # the last: of no values
    found.scatter_(1, outputs["arg"], gradients["result"])
    return {"src": found[:, :-1]}


def between(values: torch.Tensor, indptr: torch.Tensor, extent: int) -> torch.Tensor:
    """Each of the values [B, N, K] between its pointers, [B, extent, K]; 0 elsewhere."""
    found = values.new_zeros(values.shape[0], extent, values.shape[2])
    if found.numel() and values.numel():
        kernelmint.torch_scatter_gather_csr(values.contiguous(), indptr, E=extent, out=found)
    return found
