"""The oracle of causal_conv1d_fwd."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..causal_conv1d_channellast_fwd.reference import channellast_fwd
from ..inputs import random


def fwd(x: Tensor, weight: Tensor, bias: Tensor | None = None, silu: bool = False) -> Tensor:
    """Returns y [B, D, L] in fp64, for x [B, D, L], weight [D, W] and bias [D]."""
    return channellast_fwd(x.transpose(1, 2), weight, bias, silu=silu)[0].transpose(1, 2)


def tuning_inputs(
    sizes: Mapping[str, int], parameters: Mapping[str, Any], generator: torch.Generator
) -> dict[str, Tensor]:
    """Makes the inputs of checks."""
    dims = {"x": "BDL", "weight": "DW", "bias": "D"}
    return random(dims, sizes, parameters, generator)
