"""The gradient of sums of squares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

Tensors = Mapping[str, torch.Tensor]


def of_squares(
    parameters: Mapping[str, Any], inputs: Tensors, scalars: Mapping[str, Any]
) -> Callable[[Tensors, Tensors, Tensors], Tensors]:
    def backward(inputs: Tensors, outputs: Tensors, gradients: Tensors) -> Tensors:
        counts, size = inputs["starts"].diff(), inputs["src"].shape[0]
        spread = gradients["sums"].repeat_interleave(counts, 0, output_size=size)
        return {"src": 2 * inputs["src"] * spread}

    return backward
