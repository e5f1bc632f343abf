"""The tensors that kernels are checked with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "f32": torch.float32,
    "f64": torch.float64,
}


def random(
    dims: Mapping[str, str],
    sizes: Mapping[str, int],
    parameters: Mapping[str, Any],
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Makes a normally distributed tensor of each name: its letters name the extents, V = W - 1
    among them, and its dtype is that of a call."""
    extents = {**sizes, "V": sizes["W"] - 1}
    tensors = {}
    for name, letters in dims.items():
        dtype = _DTYPES[parameters["weight_dtype" if name in ("weight", "bias") else "dtype"]]
        shape = [extents[letter] for letter in letters]
        tensors[name] = torch.randn(shape, generator=generator, device=generator.device).to(dtype)
    return tensors
