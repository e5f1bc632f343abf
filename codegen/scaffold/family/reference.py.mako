"""The oracle of ${family}."""

from __future__ import annotations

import torch


def ${family}(x: torch.Tensor, y: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
    """Returns alpha * x + y for x, y [M, N], in fp64."""
    return alpha * x.double() + y.double()
