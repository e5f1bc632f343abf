"""The oracle of histogram."""

from __future__ import annotations

import torch


def histogram(x: torch.Tensor, bins: int, twice: bool) -> torch.Tensor:
    """How often each value from 0 to bins - 1 is in x [N], once or twice over."""
    return torch.bincount(x[(x >= 0) & (x < bins)], minlength=bins).repeat(2 if twice else 1)
