"""How many multiplications and additions a call makes, as FlopCounterMode counts them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from runtime import tensors


def operations(parameters: Mapping[str, Any], inputs: Mapping[str, torch.Tensor]) -> int:
    """Counts operations as PyTorch does for its own attention: pairs that a mask, or `seqused`,
    leaves out count, and the lengths of packed sequences are read."""
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    sequences, rows, heads, head_dim = q.shape
    keys = k.shape[1]
    pairs = sequences * rows * keys
    ends_q, ends_k = inputs.get("cu_seqlens_q"), inputs.get("cu_seqlens_k")
    if "block_table" in inputs:
        pairs *= inputs["block_table"].shape[1]
    elif ends_q is not None and ends_k is not None:
        pairs = _pairs(ends_q, ends_k, rows, keys)
    elif ends_k is not None:
        pairs = rows * keys
    return 2 * heads * pairs * (head_dim + v.shape[3])


def _pairs(ends_q: torch.Tensor, ends_k: torch.Tensor, rows: int, keys: int) -> int:
    """Counts the pairs of a query and a key of a sequence; unknown lengths count as equal."""
    is_fake = ends_q.is_meta or isinstance(ends_q, torch._subclasses.FakeTensor)
    if is_fake or not tensors.is_known(ends_q):
        return rows * keys // (ends_q.shape[0] - 1)
    lengths = zip(ends_q.diff().tolist(), ends_k.diff().tolist(), strict=True)
    return sum(queries * own for queries, own in lengths)
