"""The rules of bitsandbytes' codes, for the families' oracles."""

from __future__ import annotations

import torch
from torch import Tensor

NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
]  # fmt: skip
FP4 = [0.0, 0.005208333333, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25]
TABLES = {"nf4": NF4, "fp4": FP4 + [-value for value in FP4]}


def blocks(x: Tensor, blocksize: int) -> Tensor:
    """Returns x [N] as [B, blocksize], with zeros behind its end."""
    return torch.nn.functional.pad(x, (0, -len(x) % blocksize)).view(-1, blocksize)


def nearest(x: Tensor, table: Tensor) -> Tensor:
    """Returns the places in an ascending table of the values that are nearest to x's."""
    return torch.bucketize(x, (table[:-1] + table[1:]) / 2)


def numbers_of(codes: Tensor, quant_type: str) -> Tensor:
    """Returns the numbers of codes, two a byte, in fp64."""
    table = torch.tensor(TABLES[quant_type], device=codes.device, dtype=torch.float64)
    return table[torch.stack([codes >> 4, codes & 15], -1).flatten().long()]


def scaled(x: Tensor, absmax: Tensor, blocksize: int) -> Tensor:
    """Returns x [N] by its blocks' absmax, in fp64."""
    return (blocks(x.double(), blocksize) / absmax[:, None].double()).flatten()[: len(x)]


def dynamic_table(device: torch.device) -> Tensor:
    """Returns 256 ascending numbers from -1 to 1, closer to each other near 0."""
    half = 10.0 ** torch.linspace(-6, 0, 127, device=device)
    return torch.cat([-half.flip(0), half.new_zeros(2), half])
