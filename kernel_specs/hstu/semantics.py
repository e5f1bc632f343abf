"""Variants of block-sparse attention for HSTU: flags, and three named modes.

`literal` is the algorithm as it was published, with its defects; `fixed`, the default, is the
causal and padding-invariant one that its description and its ancestor (native sparse attention,
fla-org/native-sparse-attention) intend; `interleaved` is `fixed` with the sharing that the
published algorithm's comments intend: over positions, not heads. docs/block_sparse.md tells them
apart.
"""

from __future__ import annotations

import math
import reprlib
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch

LAYER_NORM_EPSILON = 1e-6


@dataclass(frozen=True)
class Semantics:
    """The points in which the modes differ."""

    list_layout: Literal["transpose", "reinterpret"]
    """How the lists [B, H, T, S] reach the query (t, h): `transpose` gives it list[h, t];
    `reinterpret` reads the same memory as [B, T, H, S], so that another query's list arrives."""
    share: Literal["none", "heads", "time"]
    """`heads`: odd heads take the list of the even head before; `time`: odd positions that of the
    even position before (an HSTU sequence alternates item and rating)."""
    open_first_rows: bool
    """Whether rows without any complete block see all compressed blocks, future ones included."""
    masked_rank: float
    """The ranking score of a block the query may not see."""
    local_rank: float
    """The ranking score of the query's own block."""


FIXED = Semantics("transpose", "none", False, -math.inf, math.inf)
LITERAL = Semantics("reinterpret", "heads", True, 0.0, 1.0)
INTERLEAVED = replace(FIXED, share="time")
MODES = {"fixed": FIXED, "literal": LITERAL, "interleaved": INTERLEAVED}
Mode: TypeAlias = str | Semantics


def shown(value: object) -> str:
    """Returns `repr(value)` for a message: never long, and of a tensor only the shape."""
    if isinstance(value, torch.Tensor):  # a tensor's memory may be freed
        return f"a {type(value).__name__} of shape {list(value.shape)}"
    return reprlib.repr(value)


def semantics_of(mode: Mode) -> Semantics:
    """Returns a named mode's flags, or `mode` itself. Raises ValueError for an unknown name."""
    if isinstance(mode, Semantics):
        return mode
    if not isinstance(mode, str) or mode not in MODES:
        raise ValueError(f"mode is {shown(mode)}: expected one of {', '.join(MODES)}")
    return MODES[mode]


def check_selection(
    block_count: int, block_size: int, heads: int, length: int, flags: Semantics
) -> None:
    """Raises ValueError, with the reason, if the selection cannot be made."""
    for name, value in (("block_size", block_size), ("block_count", block_count)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is {shown(value)}: expected a positive integer")
    if length < 1:
        raise ValueError("the sequence length T is 0: there is nothing to attend to")
    if heads < 1:
        raise ValueError("the number of heads H is 0")
    if flags.share == "heads" and heads > 1 and heads % 2 == 1:
        raise ValueError(
            f"H is {heads}: head sharing (the `literal` mode) pairs odd heads with even ones, "
            "so H must be even, or 1"
        )
    if flags.share == "time" and block_size % 2 == 1:
        raise ValueError(
            f"block_size is {block_size}: time sharing pairs odd positions with even ones of the "
            "same block, so block_size must be even"
        )
