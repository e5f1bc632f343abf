"""Inputs that the kernels are checked with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from codegen.dtypes import TABLE

_DTYPES = {dtype.name: getattr(torch, dtype.torch, None) for dtype in TABLE}


def source(
    sizes: Mapping[str, int], extent: str, parameters: Mapping[str, Any], made: torch.Generator
) -> torch.Tensor:
    """src [B, extent, K]: normal; of integers, small: their products fit."""
    shape = (sizes["B"], sizes[extent], sizes["K"])
    found = torch.randn(shape, generator=made, device=made.device)
    dtype = _DTYPES[parameters["dtype"]]
    return found.to(dtype) if dtype.is_floating_point else (found * 2).abs().to(dtype)


def indices(
    sizes: Mapping[str, int], below: int, made: torch.Generator, *more: int
) -> torch.Tensor:
    """Of [B, E, *more], in no order."""
    shape = (sizes["B"], sizes["E"], *more)
    return torch.randint(0, max(below, 1), shape, generator=made, device=made.device)


def pointers(
    sizes: Mapping[str, int], extent: int, made: torch.Generator, whole: bool
) -> torch.Tensor:
    """indptr [B, P], ascending up to `extent`; `whole`: from 0, and to it."""
    shape = (sizes["B"], sizes["P"])
    found = torch.randint(0, extent + 1, shape, generator=made, device=made.device).sort(1).values
    if whole and sizes["P"]:
        found[:, 0], found[:, -1] = 0, extent
    return found
