"""Reproducible inputs of attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from runtime import KernelInfo
from runtime.operators import DTYPES


@dataclass(frozen=True)
class Shape:
    """q [batch, seq_len, heads, d_head], k and v [batch, seq_len, kv_heads, d_head]."""

    batch: int
    seq_len: int
    heads: int
    kv_heads: int


def make_inputs(
    info: KernelInfo, shape: Shape, *, counting: bool, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v for a kernel: its dtype, its head dimension, on its device.

    Args:
        info: the kernel.
        shape: the extents.
        counting: q counts up from 0 along the rows of each head, k = -q and v = q; where fewer
            heads have keys, theirs are as the queries' heads. Otherwise all are drawn from the
            normal distribution.
        seed: of the generator; a CPU's, so that one seed gives the same on every device.

    Raises:
        ValueError: counting so far would overflow the dtype.
    """
    dtype, d_head = DTYPES[info.parameters["dtype"]], info.parameters["d_head"]
    if counting:
        last = shape.seq_len * d_head - 1
        if last > torch.finfo(dtype).max:
            rows = int(torch.finfo(dtype).max) // d_head
            raise ValueError(
                f"counting to {last} overflows {info.parameters['dtype']}: at most {rows} rows of "
                f"{d_head} fit"
            )
        count = torch.arange(last + 1, dtype=torch.float64).view(1, shape.seq_len, 1, d_head)
        q, k = (count.expand(shape.batch, -1, heads, -1) for heads in (shape.heads, shape.kv_heads))
        tensors = (q, -k, k)
    else:
        generator = torch.Generator().manual_seed(seed)
        tensors = tuple(  # type: ignore[assignment]  # three, as there are three counts of heads
            torch.randn(shape.batch, shape.seq_len, heads, d_head, generator=generator)
            for heads in (shape.heads, shape.kv_heads, shape.kv_heads)
        )
    device = "cuda" if info.is_cuda else "cpu"
    q, k, v = (t.to(dtype).to(device).contiguous() for t in tensors)
    return q, k, v
