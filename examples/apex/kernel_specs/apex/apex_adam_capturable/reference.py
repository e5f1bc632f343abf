"""The oracle of apex_adam_capturable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..apex_adam.reference import adam, magnitude
from ..made import lists


def adam_capturable(
    g: Sequence[Tensor],
    p: Sequence[Tensor],
    m: Sequence[Tensor],
    v: Sequence[Tensor],
    inv_scale: Tensor,
    noop: Tensor,
    **options: Any,
) -> tuple[Tensor, ...]:
    """Returns g, p, m and v after a step on gradients that are divided by a scale. Kernels round m
    and v to the dtype of g, although they keep them in f32."""
    if int(noop) == 1:
        return tuple(tensor.double() for tensor in (*g, *p, *m, *v))
    slopes = [tensor.float() * inv_scale for tensor in g]
    changed = [slope.to(tensor.dtype) for slope, tensor in zip(slopes, g, strict=True)]
    return (*changed, *adam(slopes, p, m, v, **_of_adam(options)))


def magnitudes(
    g: Sequence[Tensor],
    p: Sequence[Tensor],
    m: Sequence[Tensor],
    v: Sequence[Tensor],
    inv_scale: Tensor,
    **options: Any,
) -> tuple[Tensor, ...]:
    """Returns sum(|term|): apex_adam's, and 0 for g, which is only rounded to its dtype."""
    slopes = [tensor.float() * inv_scale for tensor in g]
    none = [torch.zeros_like(slope, dtype=torch.float64) for slope in slopes]
    return (*none, *magnitude(slopes, p, m, v, **_of_adam(options)))


def _of_adam(options: dict[str, Any]) -> dict[str, Any]:
    names = ("lr", "betas", "epsilon", "step", "mode", "unbiased", "decay")
    return {name: options[name] for name in names if name in options}


def numbers(device: torch.device) -> dict[str, Tensor]:
    """Returns the tensors of one number."""
    values = {"lr": 1e-2, "step": 3, "inv_scale": 0.25, "noop": 0}
    integers = ("step", "noop")
    return {
        name: torch.tensor(
            value, dtype=torch.int32 if name in integers else torch.float32, device=device
        )
        for name, value in values.items()
    }


def tuning_inputs(
    sizes: Mapping[str, int], parameters: Mapping[str, Any], generator: torch.Generator
) -> dict[str, Any]:
    """Returns the tensors of a call."""
    tensors = lists("gpmv", sizes, parameters, generator)
    return tensors | numbers(generator.device)
