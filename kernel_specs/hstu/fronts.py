"""Arguments by which the fronts of both HSTU families choose a kernel."""

from __future__ import annotations

from typing import Any

import torch

from runtime.front import Front

_FLAGS = ("block_count", "block_size", "mode", "target", "dot", "schedule")


def front_of(family: str) -> Front:
    """Returns the front that calls a family's kernels: its flags are as `flags` returns them."""
    return Front(
        family,
        lambda A, L: {"attention_dim": A, "linear_dim": L},
        flags=dict.fromkeys(_FLAGS),
    )


def flags(
    q: torch.Tensor,
    block_count: int,
    block_size: int,
    mode: str,
    target: str | None,
    dot: str | None,
    schedule: str | None,
) -> tuple[Any, ...]:
    """Returns the flags; `dot` "ieee" is the only form of the CPU's products."""
    if isinstance(dot, str) and dot == "ieee" and q.device.type == "cpu":
        dot = None
    return block_count, block_size, mode, target, dot, schedule
