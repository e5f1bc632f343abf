"""The oracle of torch_scatter_gather_csr."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..made import pointers, source

EXTENT = 70  # elements of the cases in tools.py


def tuning_inputs(
    sizes: Mapping[str, int], parameters: Mapping[str, Any], generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Makes the inputs of checks."""
    src = source(sizes, "N", parameters, generator)
    return {"src": src, "indptr": pointers(sizes, EXTENT, generator, whole=True)}


def gather_csr(src: torch.Tensor, indptr: torch.Tensor, E: int) -> torch.Tensor:
    """Repeats each value of src [B, N, K] as often as indptr [B, N + 1] says, which goes from 0 to
    E."""
    counts = indptr.diff(dim=1)
    repeated = [values.repeat_interleave(n, 0) for values, n in zip(src, counts, strict=True)]
    return torch.stack(repeated)
