"""Sequences of different lengths one behind another: what HSTU's functions are called with."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TypeAlias

import torch

Gates: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
GateModel: TypeAlias = Callable[[torch.Tensor], Gates]


def split_heads(
    num_heads: int,
    attention_dim: int,
    linear_dim: int,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    u: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Views [sum N, H, head size] of q, k, v and u [sum N, H * head size]."""
    return (
        q.view(-1, num_heads, attention_dim),
        k.view(-1, num_heads, attention_dim),
        v.view(-1, num_heads, linear_dim),
        u.view(-1, num_heads, linear_dim),
    )


def check_jagged(
    num_heads: int,
    attention_dim: int,
    linear_dim: int,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    u: torch.Tensor,
    x_offsets: torch.Tensor,
    n: int,
) -> list[int]:
    """The offsets as integers; ValueError, with the reason, where the arguments do not fit.

    Copies x_offsets to the host, so on a GPU it waits for what computes them.
    """
    for name, value in (
        ("num_heads", num_heads),
        ("attention_dim", attention_dim),
        ("linear_dim", linear_dim),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is {value!r}: expected a positive integer")
    for name, tensor, size in (
        ("q", q, attention_dim),
        ("k", k, attention_dim),
        ("v", v, linear_dim),
        ("u", u, linear_dim),
    ):
        width = num_heads * size
        if tensor.dim() != 2 or tensor.shape != (q.shape[0], width):
            rows = q.shape[0] if q.dim() else "sum N"
            raise ValueError(
                f"{name} has shape {list(tensor.shape)}: expected [{rows}, {width}], "
                f"{num_heads} heads of {size}"
            )
        if tensor.dtype not in (torch.float32, torch.float64) or tensor.dtype != q.dtype:
            raise ValueError(
                f"{name} is {tensor.dtype}: expected float32 (float64 for the oracle), as q"
            )
        if tensor.device != q.device:
            raise ValueError(f"{name} is on {tensor.device}, q on {q.device}: all must agree")
    if x_offsets.dim() != 1 or x_offsets.shape[0] < 2:
        raise ValueError(f"x_offsets has shape {list(x_offsets.shape)}: expected [B + 1], B >= 1")
    if x_offsets.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"x_offsets is {x_offsets.dtype}: expected int32 or int64")
    if n < 1:
        raise ValueError("invalid_attn_mask's last extent, the padded length n, is 0")
    offsets: list[int] = x_offsets.tolist()
    if offsets[0] != 0 or offsets[-1] != q.shape[0]:
        raise ValueError(
            f"x_offsets runs from {offsets[0]} to {offsets[-1]}: expected 0 to the number of rows, "
            f"{q.shape[0]}"
        )
    for b, (start, stop) in enumerate(itertools.pairwise(offsets)):
        if stop < start:
            raise ValueError(f"x_offsets falls from {start} to {stop} at sequence {b}")
        if stop - start > n:
            raise ValueError(
                f"sequence {b} has length {stop - start}, past n = {n}, "
                "the last extent of invalid_attn_mask"
            )
    if q.shape[0] == 0:
        raise ValueError("all sequences are empty: there is nothing to attend to")
    return offsets


def pad(x: torch.Tensor, offsets: list[int], n: int) -> torch.Tensor:
    """x [sum N, ...] as [B, n, ...], zeros behind each sequence."""
    out = x.new_zeros(len(offsets) - 1, n, *x.shape[1:])
    for b, (start, stop) in enumerate(itertools.pairwise(offsets)):
        out[b, : stop - start] = x[start:stop]
    return out


def unpad(x: torch.Tensor, offsets: list[int]) -> torch.Tensor:
    """The inverse of `pad`: [B, n, ...] to [sum N, ...]."""
    return torch.cat(
        [x[b, : stop - start] for b, (start, stop) in enumerate(itertools.pairwise(offsets))]
    )
