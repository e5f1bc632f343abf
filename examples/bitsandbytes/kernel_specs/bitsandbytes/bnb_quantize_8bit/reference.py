"""The oracle of bnb_quantize_8bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..rules import blocks, dynamic_table, nearest, scaled


def tuning_inputs(
    sizes: Mapping[str, int], parameters: Mapping[str, Any], generator: torch.Generator
) -> dict[str, Tensor]:
    """Makes the table."""
    return {"code": dynamic_table(generator.device)}


def quantize_8bit(x: Tensor, code: Tensor, blocksize: int) -> tuple[Tensor, Tensor]:
    """Returns the places of x [N] in the table, and absmax [B]."""
    absmax = blocks(x.float(), blocksize).abs().amax(1)
    places = nearest(scaled(x, absmax, blocksize), code)
    return places.to(torch.uint8), absmax
