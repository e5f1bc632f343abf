"""The gradients of flash_attn_split, which has them if nothing is in a cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kernelmint import InvalidArgument

from ..gradients import Tensors, gradient


def split_gradient(
    parameters: Mapping[str, Any], inputs: Tensors, scalars: Mapping[str, Any]
) -> Callable[[Tensors, Tensors, Tensors], Tensors]:
    """As of flash_attn_forward. Raises InvalidArgument for keys in a cache, in pages or packed."""
    cached = ("cu_seqlens_k", "cache_seqlens", "leftpad_k", "block_table", "cache_batch_idx")
    for name in cached:
        if inputs.get(name) is not None:
            raise InvalidArgument(
                f"q: requires_grad is set and grad mode is on, but flash-attn has no backward pass "
                f"with {name}: call it under torch.no_grad()"
            )
    return gradient(parameters, inputs, scalars)
