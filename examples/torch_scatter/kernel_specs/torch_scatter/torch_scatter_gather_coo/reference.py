"""The oracle of torch_scatter_gather_coo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..made import indices, source


def tuning_inputs(
    sizes: Mapping[str, int], parameters: Mapping[str, Any], generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Makes the inputs of checks."""
    src = source(sizes, "N", parameters, generator)
    return {"src": src, "index": indices(sizes, sizes["N"], generator).sort(1).values}


def gather_coo(src: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Returns the values of src [B, N, K] at index [B, E], [B, E, K]."""
    return src.gather(1, index[:, :, None].expand(-1, -1, src.shape[2]))
