"""The oracle of causal_conv1d_channellast_bwd."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..causal_conv1d_channellast_fwd.reference import channellast_fwd
from ..inputs import random


def channellast_bwd(
    x: Tensor,
    dy: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    dfinal_states: Tensor | None = None,
    silu: bool = False,
) -> tuple[Tensor, ...]:
    """Returns dx, dweight, dbias and dinitial_states in fp64, each in the shape of its tensor:
    autograd's gradients of the oracle of causal_conv1d_channellast_fwd. dbias and dinitial_states
    are 0 without a bias or states."""
    batch, _, channels = x.shape
    width = weight.shape[1]
    leaves = [
        x,
        weight,
        x.new_zeros(channels) if bias is None else bias,
        x.new_zeros(batch, width - 1, channels) if initial_states is None else initial_states,
    ]
    leaves = [leaf.detach().double().requires_grad_() for leaf in leaves]
    with torch.enable_grad():
        states = None if initial_states is None else leaves[3]
        results = channellast_fwd(leaves[0], leaves[1], leaves[2], seq_idx, states, silu)
        end = torch.zeros_like(results[1]) if dfinal_states is None else dfinal_states.double()
        gradients = torch.autograd.grad(results, leaves, (dy.double(), end), allow_unused=True)
    return tuple(
        torch.zeros_like(leaf) if one is None else one
        for leaf, one in zip(leaves, gradients, strict=True)
    )


def tuning_inputs(
    sizes: Mapping[str, int], parameters: Mapping[str, Any], generator: torch.Generator
) -> dict[str, Tensor]:
    """Makes the inputs of checks."""
    dims = {"x": "BLD", "dy": "BLD", "weight": "DW", "bias": "D", "initial_states": "BVD"}
    if parameters.get("has_dfinal", True):
        dims["dfinal_states"] = "BVD"
    return random(dims, sizes, parameters, generator)
