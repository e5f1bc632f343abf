"""The oracle of bnb_dequantize_4bit."""

from __future__ import annotations

from torch import Tensor

from ..rules import blocks, numbers_of


def dequantize_4bit(
    codes: Tensor, absmax: Tensor, quant_type: str, n: int, blocksize: int
) -> Tensor:
    """Returns the n numbers of codes, two a byte, in fp64."""
    rows = blocks(numbers_of(codes, quant_type)[:n], blocksize)
    return (rows * absmax[:, None].double()).flatten()[:n]
