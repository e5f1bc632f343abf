"""The oracle of causal_conv1d_update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..causal_conv1d_channellast_fwd.reference import channellast_fwd
from ..inputs import random


def update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    cache_seqlens: Tensor | None = None,
    conv_state_indices: Tensor | None = None,
    silu: bool = False,
) -> tuple[Tensor, Tensor]:
    """Returns y [B, D, L] in fp64, and conv_state after the call, for x [B, D, L], conv_state [N,
    D, S], weight [D, W], bias [D], and cache_seqlens and conv_state_indices [B]."""
    batch, _, length = x.shape
    width, kept = weight.shape[1], conv_state.shape[2]
    y = torch.zeros_like(x, dtype=torch.float64)
    after = conv_state.clone()
    for b in range(batch):
        entry = b if conv_state_indices is None else int(conv_state_indices[b])
        if entry < 0:
            continue
        first = kept if cache_seqlens is None else int(cache_seqlens[b])
        before = torch.arange(first - (width - 1), first) % kept
        states = conv_state[entry][:, before]
        y[b] = channellast_fwd(x[b : b + 1].mT, weight, bias, None, states.T[None], silu)[0][0].T
        if cache_seqlens is None:
            after[entry] = torch.cat([conv_state[entry], x[b]], dim=-1)[:, -kept:]
        else:
            for i in range(length):
                after[entry][:, (first + i) % kept] = x[b, :, i]
    return y, after


def tuning_inputs(
    sizes: Mapping[str, int], parameters: Mapping[str, Any], generator: torch.Generator
) -> dict[str, Tensor]:
    """Makes the inputs of checks."""
    dims = {"x": "BDL", "conv_state": "NDS", "weight": "DW", "bias": "D"}
    return random(dims, sizes, parameters, generator)
