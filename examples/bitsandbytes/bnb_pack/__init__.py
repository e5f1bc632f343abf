"""bitsandbytes' quantisers, by the names and signatures of its operators, on kernels that know no
PyTorch:

from bnb_pack import dequantize_4bit, quantize_4bit

codes, absmax = quantize_4bit(weight, blocksize=64, quant_type="nf4")
weight = dequantize_4bit(codes, absmax, 64, "nf4", weight.shape, torch.bfloat16)

`bnb_pack.drop_in` makes bitsandbytes itself call them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

import kernelmint

__version__ = "0.50.2"  # the version of upstream's functions

__all__ = ["dequantize_4bit", "dequantize_blockwise", "quantize_4bit", "quantize_blockwise"]


def quantize_4bit(
    A: Tensor, blocksize: int, quant_type: str, quant_storage: torch.dtype = torch.uint8
) -> tuple[Tensor, Tensor]:
    """Returns the codes of A, of any shape, as [bytes, 1] of quant_storage, and absmax [blocks].

    Args:
        A: bf16, fp16 or f32.
        blocksize: a power of two from 32 to 4096.
        quant_type: nf4 or fp4.
        quant_storage: the dtype of the codes' memory, whose elements they fill.
    """
    codes, absmax = kernelmint.bnb_quantize_4bit(_flat(A), blocksize, quant_type=quant_type)
    return codes.view(quant_storage)[:, None], absmax


def dequantize_4bit(
    A: Tensor,
    absmax: Tensor,
    blocksize: int,
    quant_type: str,
    shape: Sequence[int],
    dtype: torch.dtype,
    out: Tensor | None = None,
) -> Tensor:
    """Returns the numbers of the codes A in a shape and a dtype, in `out` if there is one."""
    codes = _flat(A).view(torch.uint8)
    y = kernelmint.bnb_dequantize_4bit(
        codes, absmax, math.prod(shape), blocksize, dtype=dtype, quant_type=quant_type,
        out=None if out is None else out.view(-1),
    )  # fmt: skip
    return y.view(shape)


def quantize_blockwise(A: Tensor, code: Tensor, blocksize: int) -> tuple[Tensor, Tensor]:
    """Returns the places of A's numbers in the table `code`, in A's shape, and absmax [blocks]."""
    codes, absmax = kernelmint.bnb_quantize_8bit(_flat(A), code, blocksize)
    return codes.view(A.shape), absmax


def dequantize_blockwise(
    A: Tensor,
    absmax: Tensor,
    code: Tensor,
    blocksize: int,
    dtype: torch.dtype,
    out: Tensor | None = None,
) -> Tensor:
    """Returns the numbers that A's places in the table `code` mean, in a dtype, in A's shape."""
    y = kernelmint.bnb_dequantize_8bit(
        _flat(A), absmax, code, blocksize, dtype=dtype, out=None if out is None else out.view(-1)
    )
    return y.view(A.shape)


def _flat(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1)
