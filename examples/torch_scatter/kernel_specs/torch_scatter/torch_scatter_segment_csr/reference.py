"""The oracle of torch_scatter_segment_csr."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..made import pointers, source


def tuning_inputs(
    sizes: Mapping[str, int], parameters: Mapping[str, Any], generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Makes the inputs of checks."""
    src = source(sizes, "E", parameters, generator)
    return {"src": src, "indptr": pointers(sizes, sizes["E"], generator, whole=False)}


def segment_csr(
    src: torch.Tensor, indptr: torch.Tensor, reduce: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the reduction in fp64 (integers: i64) of src [B, E, K] between indptr [B, P], [B, P -
    1, K], and the place in E of the least or greatest value; E for no values, and for sum and
    mean."""
    batches, extent, columns = src.shape
    wide = src.double() if src.is_floating_point() else src.long()
    result = wide.new_zeros(batches, max(indptr.shape[1] - 1, 0), columns)
    arg = torch.full_like(result, extent, dtype=torch.int64)
    for b in range(batches):
        for row, (first, last) in enumerate(zip(indptr[b], indptr[b, 1:], strict=False)):
            values = wide[b, first:last]
            if len(values):
                result[b, row], arg[b, row] = reduced(values, reduce, int(first), extent)
    return result, arg


def reduced(
    values: torch.Tensor, reduce: str, first: int, none: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reduces values [n, K], which begin at `first`; returns the reduction [K] and its place."""
    nowhere = torch.full_like(values[0], none, dtype=torch.int64)
    if reduce == "sum":
        return values.sum(0), nowhere
    if reduce == "mul":
        return values.prod(0), nowhere
    if reduce == "mean":
        sums = values.sum(0)
        exact = sums / len(values)
        return exact if values.is_floating_point() else exact.trunc().to(values.dtype), nowhere
    best = values.min(0) if reduce == "min" else values.max(0)
    # The first of several.
    at = (values == best.values).to(torch.int8).argmax(0)
    return best.values, at + first
