"""The gradient of torch_scatter_segment_coo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import kernelmint

from .. import gradients
from ..gradients import Backward, Tensors


def segment_coo(parameters: Mapping[str, Any], inputs: Tensors, scalars: Any) -> Backward:
    """The gradient of src [B, E, K]: that at its index; of mean, divided by the index's count."""

    def backward(inputs: Tensors, outputs: Tensors, given: Tensors) -> Tensors:
        src, index, gradient = inputs["src"], inputs["index"], given["result"].contiguous()
        found = kernelmint.torch_scatter_gather_coo(gradient, index)
        if parameters["reduce"] == "mean":
            ones = src.new_ones(*src.shape[:2], 1)
            counts = kernelmint.torch_scatter_segment_coo(ones, index, N=gradient.shape[1])
            found = found / kernelmint.torch_scatter_gather_coo(counts, index)
        return {"src": found}

    return gradients.of_arg if parameters["reduce"] in ("min", "max") else backward
