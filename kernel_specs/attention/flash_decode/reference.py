"""What flash_decode computes, in PyTorch: the fp64 oracle."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import torch
from torch import Tensor

from ..flash_prefill.reference import prefill


def decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    block_table: Tensor | None = None,
    seqused_k: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    s_aux: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    window_left: int = -1,
    window_right: int = 0,
) -> tuple[Tensor, Tensor]:
    """Attention of few queries over caches in fp64: flash_prefill's, of a batch whose keys are
    k_cache, [B, P, Hk, D], or with `block_table` pages, [N, P, Hk, D], and whose causal mask is
    `window_right` 0.

    Returns:
        o, [B, Sq, H, Dv], and lse, [B, H, Sq], in fp64. A row that sees nothing has o = 0, and
        without a sink lse = -inf.
    """
    return prefill(
        q, k_cache, v_cache, block_table=block_table, seqused_k=seqused_k, leftpad_k=leftpad_k,
        s_aux=s_aux, alibi_slopes=alibi_slopes, softmax_scale=softmax_scale, softcap=softcap,
        window_left=window_left, window_right=window_right,
    )  # fmt: skip


def tuning_inputs(
    sizes: Mapping[str, int],
    parameters: Mapping[str, Any],
    generator: torch.Generator,
    given: Container[str],
) -> dict[str, Tensor]:
    """What may not be random, if it is given: lengths that are spread evenly up to a whole cache,
    and pages, both in an order that is none. All else is normally distributed."""
    batch, pages, longest = sizes["B"], sizes.get("pages", 1), sizes["P"]
    made = {}

    def shuffled(count: int) -> Tensor:
        return torch.randperm(count, generator=generator, device=generator.device)

    if "block_table" in given:
        longest *= pages
        made["block_table"] = shuffled(sizes["N"])[: batch * pages].reshape(batch, pages).int()
    if "seqused_k" in given:
        made["seqused_k"] = (longest * (shuffled(batch) + 1) // batch).int()
    return made
