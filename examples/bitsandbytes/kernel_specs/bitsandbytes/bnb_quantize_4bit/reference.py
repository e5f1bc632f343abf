"""The oracle of bnb_quantize_4bit."""

from __future__ import annotations

import torch
from torch import Tensor

from ..rules import TABLES, blocks, nearest


def quantize_4bit(x: Tensor, quant_type: str, blocksize: int = 64) -> tuple[Tensor, Tensor]:
    """Returns the codes of x [N], two a byte, and absmax [B]."""
    rows = blocks(x.float(), blocksize)
    absmax = rows.abs().amax(1)
    table, order = torch.tensor(TABLES[quant_type], device=x.device).sort()
    places = nearest(rows / absmax[:, None], table).flatten()[: len(x) + len(x) % 2]
    codes = order[places]
    return (codes[::2] << 4 | codes[1::2]).to(torch.uint8), absmax
