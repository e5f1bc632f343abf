"""The oracle of bnb_quantize_4bit."""

from __future__ import annotations

import torch
from torch import Tensor

from ..rules import TABLES, blocks, nearest, scaled


def quantize_4bit(x: Tensor, quant_type: str, blocksize: int) -> tuple[Tensor, Tensor]:
    """Returns the codes of x [N], two a byte, and absmax [B]."""
    absmax = blocks(x.float(), blocksize).abs().amax(1)
    table, order = torch.tensor(TABLES[quant_type], device=x.device).sort()
    codes = order[nearest(scaled(x, absmax, blocksize), table)]
    codes = torch.nn.functional.pad(codes, (0, len(x) % 2))
    return (codes[::2] << 4 | codes[1::2]).to(torch.uint8), absmax
