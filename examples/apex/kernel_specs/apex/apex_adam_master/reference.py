"""The oracle of apex_adam_master."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..apex_adam_capturable.reference import adam_capturable, magnitudes, numbers
from ..made import lists


def adam_master(
    g: Sequence[Tensor],
    p: Sequence[Tensor],
    m: Sequence[Tensor],
    v: Sequence[Tensor],
    p_master: Sequence[Tensor],
    inv_scale: Tensor,
    noop: Tensor,
    **options: Any,
) -> tuple[Tensor, ...]:
    """Returns g, p, m, v and p_master after a step on master weights."""
    if int(noop) == 1:
        return tuple(tensor.double() for tensor in (*g, *p, *m, *v, *p_master))
    results = adam_capturable(g, p_master, m, v, inv_scale, noop, **options)
    count = len(g)
    return (*results, *results[count : 2 * count])


def magnitude(
    g: Sequence[Tensor], p: Sequence[Tensor], p_master: Sequence[Tensor], **others: Any
) -> tuple[Tensor, ...]:
    """Returns sum(|term|): apex_adam_capturable's."""
    results = magnitudes(g, p_master, **others)
    return (*results, *results[len(g) : 2 * len(g)])


def tuning_inputs(
    sizes: Mapping[str, int], parameters: Mapping[str, Any], generator: torch.Generator
) -> dict[str, Any]:
    """Returns the tensors of a call."""
    tensors = lists(["g", "p", "m", "v", "p_master"], sizes, parameters, generator)
    return tensors | numbers(generator.device)
