"""The oracle of apex_adam."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..made import lists


def adam(
    g: Sequence[Tensor],
    p: Sequence[Tensor],
    m: Sequence[Tensor],
    v: Sequence[Tensor],
    lr: Any,
    betas: Sequence[float],
    epsilon: float,
    step: Any,
    mode: str = "decoupled",
    unbiased: bool = True,
    decay: float = 0.0,
) -> tuple[Tensor, ...]:
    """Returns p, m and v after a step, in fp64: Algorithm 2 of https://arxiv.org/abs/1711.05101,
    of which `l2` adds the decay to the gradients."""
    corrections = [1 - beta ** int(step) if unbiased else 1.0 for beta in betas]
    results: tuple[list[Tensor], ...] = ([], [], [])
    for gradient, parameter, mean, square in zip(g, p, m, v, strict=True):
        before, slope = parameter.double(), gradient.double()
        if mode == "l2":
            slope = slope + decay * before
        mean = betas[0] * mean.double() + (1 - betas[0]) * slope
        square = betas[1] * square.double() + (1 - betas[1]) * slope**2
        update = (mean / corrections[0]) / ((square / corrections[1]).sqrt() + epsilon)
        if mode == "decoupled":
            update = update + decay * before
        for result, tensor in zip(
            results, (before - float(lr) * update, mean, square), strict=True
        ):
            result.append(tensor)
    return tuple(tensor for result in results for tensor in result)


def magnitude(
    g: Sequence[Tensor],
    p: Sequence[Tensor],
    m: Sequence[Tensor],
    v: Sequence[Tensor],
    lr: Any,
    betas: Sequence[float],
    epsilon: float,
    step: Any,
    mode: str = "decoupled",
    unbiased: bool = True,
    decay: float = 0.0,
) -> tuple[Tensor, ...]:
    """Returns sum(|term|) of p's change, m and v, in which no terms cancel out. The change is
    divided by the root of v, whose relative error grows as terms of l2's gradients cancel out."""
    corrections = [1 - beta ** int(step) if unbiased else 1.0 for beta in betas]
    results: tuple[list[Tensor], ...] = ([], [], [])
    for gradient, parameter, mean, square in zip(g, p, m, v, strict=True):
        before, slope = parameter.double(), gradient.double()
        terms = slope.abs()
        if mode == "l2":
            slope, terms = slope + decay * before, terms + decay * before.abs()
        mean = betas[0] * mean.double().abs() + (1 - betas[0]) * terms
        result = betas[1] * square.double() + (1 - betas[1]) * slope**2
        square = betas[1] * square.double() + (1 - betas[1]) * terms**2
        update = mean / corrections[0] / ((result / corrections[1]).sqrt() + epsilon)
        update = update * (square / result)
        if mode == "decoupled":
            update = update + decay * before.abs()
        for all_of, tensor in zip(results, (float(lr) * update, mean, square), strict=True):
            all_of.append(tensor)
    return tuple(tensor for result in results for tensor in result)


def tuning_inputs(
    sizes: Mapping[str, int], parameters: Mapping[str, Any], generator: torch.Generator
) -> dict[str, Any]:
    """Returns the tensors of a call."""
    return lists("gpmv", sizes, parameters, generator)
