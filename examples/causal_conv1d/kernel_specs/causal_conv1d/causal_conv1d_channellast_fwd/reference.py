"""The oracle of causal_conv1d_channellast_fwd."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..inputs import random


def channellast_fwd(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    silu: bool = False,
) -> tuple[Tensor, Tensor]:
    """Returns y [B, L, D] and final_states [B, W - 1, D] in fp64, for x [B, L, D], weight [D, W],
    bias [D], seq_idx [B, L] and initial_states [B, W - 1, D]."""
    batch, length, _ = x.shape
    width = weight.shape[1]
    states = initial_states
    if states is None:
        states = x.new_zeros(batch, width - 1, x.shape[2])
    whole = torch.cat([states.double(), x.double()], dim=1)
    windows = whole.unfold(1, width, 1)[:, :length]  # [B, L, D, W]
    if seq_idx is not None:
        before = torch.full_like(seq_idx[:, :1], -1) if initial_states is None else seq_idx[:, :1]
        sequences = torch.cat([before.expand(-1, width - 1), seq_idx], dim=1)
        same = sequences.unfold(1, width, 1)[:, :length] == seq_idx.unsqueeze(-1)
        windows = torch.where(same.unsqueeze(2), windows, 0.0)
    y = (windows * weight.double()).sum(-1)
    if bias is not None:
        y = y + bias.double()
    if silu:
        y = functional.silu(y)
    if seq_idx is not None:
        y = torch.where(seq_idx.unsqueeze(-1) < 0, 0.0, y)
    return y, whole[:, length:]


def tuning_inputs(
    sizes: Mapping[str, int], parameters: Mapping[str, Any], generator: torch.Generator
) -> dict[str, Tensor]:
    """Makes the inputs of checks."""
    dims = {"x": "BLD", "weight": "DW", "bias": "D", "initial_states": "BVD"}
    return random(dims, sizes, parameters, generator)
