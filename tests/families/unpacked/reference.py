"""The 4-bit numbers of w, by PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def unpacked(w: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """w: [M, ceil(K / 2)] of two in each; returns [M, K] and w."""
    codes = w.view(torch.uint8)
    pairs = torch.stack([codes & 15, codes >> 4], -1)
    return pairs.flatten(1)[:, : len(bias)].double() + bias.double(), w
