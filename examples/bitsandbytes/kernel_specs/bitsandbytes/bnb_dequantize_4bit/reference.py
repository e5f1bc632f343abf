"""The oracle of bnb_dequantize_4bit."""

from __future__ import annotations

import torch
from torch import Tensor

from ..rules import TABLES, blocks


def dequantize_4bit(
    codes: Tensor, absmax: Tensor, quant_type: str, n: int, blocksize: int
) -> Tensor:
    """Returns the n numbers of codes, two a byte, in fp64."""
    places = torch.stack([codes >> 4, codes & 15], -1).flatten()[:n].long()
    table = torch.tensor(TABLES[quant_type], device=codes.device, dtype=torch.float64)
    return (blocks(table[places], blocksize) * absmax[:, None].double()).flatten()[:n]
