"""HSTU's attention with block-sparse attention inside, in PyTorch: jagged in, jagged out."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import nn

from kernel_specs.hstu.block_sparse.reference import block_sparse_attention
from kernel_specs.hstu.block_sparse.semantics import Mode, check_selection, semantics_of

Gates: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
GateModel: TypeAlias = Callable[[torch.Tensor], Gates]


class GateMLP(nn.Module):
    """The gates of the three branches from the query: Linear, ReLU, Linear, sigmoid."""

    def __init__(self, attention_dim: int, hidden: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(attention_dim, hidden), nn.ReLU(), nn.Linear(hidden, 3)
        )

    def forward(self, q: torch.Tensor) -> Gates:
        """q [..., A] -> (g_cmp, g_slc, g_swa), each [...], in (0, 1)."""
        g_cmp, g_slc, g_swa = torch.sigmoid(self.layers(q)).unbind(-1)
        return g_cmp, g_slc, g_swa


def hstu_attention_with_bsa(
    num_heads: int,
    attention_dim: int,
    linear_dim: int,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    u: torch.Tensor,
    x_offsets: torch.Tensor,
    invalid_attn_mask: torch.Tensor,
    gate_model: GateModel,
    *,
    block_count: int = 4,
    block_size: int = 32,
    mode: Mode = "fixed",
    attention: Callable[..., tuple[torch.Tensor, torch.Tensor]] = block_sparse_attention,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns attn_output [sum N, H * L] and the zero-padded padded_q, padded_k [B, n, H, A].

    q, k: [sum N, H * A]; v, u: [sum N, H * L]; x_offsets: [B + 1] (int32 or int64), sequence b
    being the rows x_offsets[b] to x_offsets[b + 1]; invalid_attn_mask: [..., n, n], of which only
    the extent n counts; gate_model: q [..., A] -> three gates [...]; attention: what
    computes block-sparse attention over the padded tensors. ValueError for what does not fit.
    """
    n = invalid_attn_mask.shape[-1] if invalid_attn_mask.dim() else 0
    offsets = check_jagged(num_heads, attention_dim, linear_dim, q, k, v, u, x_offsets, n)
    check_selection(block_count, block_size, num_heads, n, semantics_of(mode))
    q, k, v, u = split_heads(num_heads, attention_dim, linear_dim, q, k, v, u)
    # A gate is a function of its own row; the padding rows' results are dropped.
    g_cmp, g_slc, _ = gate_model(q)
    padded_q, padded_k = pad(q, offsets, n), pad(k, offsets, n)
    o, _ = attention(
        padded_q,
        padded_k,
        pad(v, offsets, n),
        pad(u, offsets, n),
        pad(g_cmp, offsets, n),
        pad(g_slc, offsets, n),
        block_count=block_count,
        block_size=block_size,
        mode=mode,
    )
    return unpad(o, offsets).flatten(1), padded_q, padded_k


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
