"""The oracle of add_scaled, and the lists that it is checked on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def add_scaled(
    y: Sequence[Tensor], x: Sequence[Tensor], factors: Sequence[float] = (1, 1)
) -> tuple[Tensor, ...]:
    """Returns the tensors of y afterwards, in fp64."""
    return tuple(
        factors[0] * b.double() + factors[1] * a.double() for a, b in zip(y, x, strict=True)
    )


def tuning_inputs(
    sizes: Mapping[str, int], parameters: Mapping[str, Any], generator: torch.Generator
) -> dict[str, list[Tensor]]:
    """Returns lists of L tensors of several sizes."""
    dtype = torch.bfloat16 if parameters["dtype"] == "bf16" else torch.float32
    shapes = [(i % 3, 1 + 7 * (i % 5)) for i in range(sizes["L"])]
    return {
        name: [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
        for name in ("y", "x")
    }
