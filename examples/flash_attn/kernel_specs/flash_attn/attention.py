"""The computation of flash-attn's kernels, in PyTorch and differentiable: the fp64 oracle of
all."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

OPTIONS = (
    "softmax_scale",
    "softcap",
    "window_left",
    "window_right",
)  # arguments of `attention`


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    window_left: int = -1,
    window_right: int = -1,
    slopes: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes one sequence, in fp64: q [Sq, H, D], k and v [Sk, Hk, D], slopes [H]; out [Sq, H, D]
    and lse [H, Sq]. Query i is at key Sk - Sq + i. A row that sees no key is 0, its lse inf."""
    q, k, v = (t.double() for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[1] // max(1, k.shape[1]), dim=1) for t in (k, v))
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    scores = scale * torch.einsum("qhd,khd->hqk", q, k)
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    at = torch.arange(len(q), device=q.device)[:, None] + len(k) - len(q)
    distance = torch.arange(len(k), device=q.device) - at
    if slopes is not None:
        scores = scores - slopes.double()[:, None, None] * distance.abs()
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if window_left >= 0:
        hidden |= distance < -window_left
    if window_right >= 0:
        hidden |= distance > window_right
    nothing = hidden.all(1)
    scores = scores.masked_fill(hidden & ~nothing[:, None], -math.inf)
    lse = scores.logsumexp(-1).masked_fill(nothing, math.inf)
    weights = scores.softmax(-1).masked_fill(nothing[:, None], 0.0)
    return torch.einsum("hqk,khd->qhd", weights, v), lse


def sequences(
    batch: int, q: Tensor, k: Tensor, cu_seqlens_q: Tensor | None, cu_seqlens_k: Tensor | None
) -> Iterator[tuple[tuple[int, slice], tuple[int, slice]]]:
    """Yields the place of each sequence's queries and keys: an entry of the batch, and its rows."""

    def of(t: Tensor, cu: Tensor | None, b: int) -> tuple[int, slice]:
        return (b, slice(0, t.shape[1])) if cu is None else (0, slice(int(cu[b]), int(cu[b + 1])))

    for b in range(batch):
        yield of(q, cu_seqlens_q, b), of(k, cu_seqlens_k, b)
