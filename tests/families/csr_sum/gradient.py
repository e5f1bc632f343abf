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
        spread = gradients["sums"].repeat_interleave(inputs["starts"].diff(), 0)
        return {"src": 2 * inputs["src"] * spread}

    return backward
