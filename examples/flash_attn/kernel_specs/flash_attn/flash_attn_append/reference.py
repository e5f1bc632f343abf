"""The oracle of flash_attn_append, in fp64: attention over a cache, and the cache afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..cases import DTYPES
from ..cases import inputs as cache_and_queries
from ..flash_attn_split.reference import split


def append(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_new: Tensor,
    v_new: Tensor,
    cache_seqlens: Tensor,
    *,
    block_table: Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    rotary_interleaved: bool = True,
    window_left: int = -1,
    window_right: int = -1,
    **others: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the attention of q [B, Sq, H, D], its log-sum-exps, and k and v [Bk, Sk, Hk, D] after
    k_new and v_new [B, Sn, Hk, D] were written after the first `cache_seqlens` keys of each
    sequence, those before its padding among them; `others` are flash_attn_split's.

    Keys are turned by their place. So are queries under a mask or a window, where query i is at
    the place of new key i; without one, all are at that of the first.
    """
    q, k, v = q.clone(), k.clone(), v.clone()
    moves = window_left >= 0 or window_right >= 0
    for b, length in enumerate(cache_seqlens.tolist()):
        place = length + torch.arange(k_new.shape[1], device=q.device)
        if block_table is None:
            entry, row = (b if cache_batch_idx is None else cache_batch_idx[b].long()), place
        else:
            entry, row = block_table[b].long()[place // k.shape[1]], place % k.shape[1]
        of_query = length + moves * torch.arange(q.shape[1], device=q.device)
        key = k_new[b]
        if rotary_cos is not None and rotary_sin is not None:
            key = turned(key, rotary_cos[place], rotary_sin[place], rotary_interleaved)
            q[b] = turned(q[b], rotary_cos[of_query], rotary_sin[of_query], rotary_interleaved)
        k[entry, row], v[entry, row] = key, v_new[b]
    results = split(
        q, k, v, cache_seqlens=cache_seqlens + k_new.shape[1], block_table=block_table,
        cache_batch_idx=cache_batch_idx, window_left=window_left, window_right=window_right,
        **others,
    )  # fmt: skip
    return *results, k, v


def turned(t: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Turns the first 2 R columns of t [S, H, D] in pairs by cos and sin [S, R]: columns 0 and 1
    or, not interleaved, 0 and R. In fp64, rounded to t's dtype, as the cache keeps it."""
    width = cos.shape[1]
    part = t[..., : 2 * width].double()
    x, y = part.unflatten(-1, (width, 2)).unbind(-1) if interleaved else part.split(width, -1)
    cos, sin = cos.double()[:, None], sin.double()[:, None]
    pair = x * cos - y * sin, x * sin + y * cos
    joined = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat([joined.to(t.dtype), t[..., 2 * width :]], -1)


def tuning_inputs(
    sizes: Mapping[str, int], parameters: Mapping[str, Any], generator: torch.Generator
) -> dict[str, Tensor]:
    """Makes the inputs of checks. Turned elements have so few bits that their products and sums are
    exact, and kernels round nothing where the reference does not."""
    tensors = cache_and_queries(sizes, parameters, generator)
    dtype, device = DTYPES[parameters["dtype"]], generator.device
    new = [sizes[dim] for dim in ("B", "Sn", "Hk", "D")]
    for name in ("k_new", "v_new"):
        tensors[name] = torch.randn(new, generator=generator, device=device).to(dtype)
    if sizes["R"] > 0:

        def eighths(shape: list[int], most: int) -> Tensor:
            drawn = torch.randint(-most, most + 1, shape, generator=generator, device=device)
            return (drawn / 8).to(dtype)

        for name in ("q", "k_new"):
            tensors[name] = 2 * eighths(list(tensors[name].shape), 7)
        for name in ("rotary_cos", "rotary_sin"):
            tensors[name] = eighths([sizes["Sr"], sizes["R"]], 8)
    return tensors
