"""The gradient of torch_scatter_scatter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import gradients
from ..gradients import Backward, Tensors


def scatter(parameters: Mapping[str, Any], inputs: Tensors, scalars: Any) -> Backward:
    """The gradient of src [B, E, K]; of a product as upstream has it: the product by the value, and
    0 for 0 / 0."""

    def backward(inputs: Tensors, outputs: Tensors, given: Tensors) -> Tensors:
        found = (given["result"] * outputs["result"]).gather(1, inputs["index"]) / inputs["src"]
        return {"src": found.masked_fill(found.isnan(), 0)}

    return backward if parameters["reduce"] == "mul" else gradients.of_arg
