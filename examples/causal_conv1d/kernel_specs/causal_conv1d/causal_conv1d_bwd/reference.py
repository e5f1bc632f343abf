"""The oracle of causal_conv1d_bwd."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..causal_conv1d_channellast_bwd.reference import channellast_bwd
from ..inputs import random


def bwd(
    x: Tensor, dy: Tensor, weight: Tensor, bias: Tensor | None = None, silu: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns dx [B, D, L], dweight [D, W] and dbias [D] in fp64."""
    dx, dweight, dbias, _ = channellast_bwd(
        x.transpose(1, 2), dy.transpose(1, 2), weight, bias, silu=silu
    )
    return dx.transpose(1, 2), dweight, dbias


def tuning_inputs(
    sizes: Mapping[str, int], parameters: Mapping[str, Any], generator: torch.Generator
) -> dict[str, Tensor]:
    """Makes the inputs of checks."""
    dims = {"x": "BDL", "dy": "BDL", "weight": "DW", "bias": "D"}
    return random(dims, sizes, parameters, generator)
