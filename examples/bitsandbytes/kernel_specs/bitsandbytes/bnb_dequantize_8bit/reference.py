"""The oracle of bnb_dequantize_8bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..rules import blocks, dynamic_table


def tuning_inputs(
    sizes: Mapping[str, int], parameters: Mapping[str, Any], generator: torch.Generator
) -> dict[str, Tensor]:
    """Makes the table and places in it."""
    device = generator.device
    codes = torch.randint(256, (sizes["N"],), generator=generator, device=device)
    return {"code": dynamic_table(device), "codes": codes.to(torch.uint8)}


def dequantize_8bit(codes: Tensor, absmax: Tensor, code: Tensor, blocksize: int) -> Tensor:
    """Returns the numbers of codes [N], in fp64."""
    values = blocks(code.double()[codes.long()], blocksize) * absmax[:, None].double()
    return values.flatten()[: len(codes)]
