"""The gradient of torch_scatter_segment_csr."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import gradients
from ..gradients import Backward, Tensors


def segment_csr(parameters: Mapping[str, Any], inputs: Tensors, scalars: Any) -> Backward:
    """The gradient of src [B, E, K]: that of its row; of mean, divided by the row's count."""

    def backward(inputs: Tensors, outputs: Tensors, given: Tensors) -> Tensors:
        src, indptr, gradient = inputs["src"], inputs["indptr"], given["result"]
        found = gradients.between(gradient, indptr, src.shape[1])
        if parameters["reduce"] == "mean":
            counts = indptr.diff(dim=1).to(src.dtype)[:, :, None].expand(len(src), -1, 1)
            found = found / gradients.between(counts, indptr, src.shape[1]).clamp(1)
        return {"src": found}

    return gradients.of_arg if parameters["reduce"] in ("min", "max") else backward
