"""The oracle of torch_scatter_segment_coo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..made import indices, source

ROWS = 9  # rows of the cases in tools.py


def tuning_inputs(
    sizes: Mapping[str, int], parameters: Mapping[str, Any], generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Makes the inputs of checks."""
    src = source(sizes, "E", parameters, generator)
    index = indices(sizes, ROWS, generator).sort(1).values
    return {"src": src, "index": index}


def segment_coo(
    src: torch.Tensor, index: torch.Tensor, N: int, reduce: str, initial: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the reduction in fp64 (integers: i64) of src [B, E, K] by index [B, E], [B, N, K],
    and the place in E of the least or greatest value, the first of several; E for no values."""
    wide = src.double() if src.is_floating_point() else src.long()
    index = index[:, :, None].expand(src.shape)
    name = {"sum": "sum", "mean": "mean", "min": "amin", "max": "amax"}[reduce]
    shape = (src.shape[0], N, src.shape[2])
    if initial is not None:
        begun = initial.to(wide.dtype)
    else:
        begun = wide.new_full(shape, 1 if reduce == "mul" else 0)
    is_self = initial is not None or reduce in ("sum", "mul")
    result = begun.scatter_reduce(1, index, wide, name, include_self=is_self)
    places = torch.arange(src.shape[1], device=src.device)[None, :, None].expand(src.shape)
    nowhere = torch.full_like(places, src.shape[1])
    places = torch.where(wide == result.gather(1, index), places, nowhere)
    arg = torch.full(shape, src.shape[1], device=src.device)
    return result, arg.scatter_reduce(1, index, places, "amin")
