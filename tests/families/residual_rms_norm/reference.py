"""The oracle of residual_rms_norm."""

from __future__ import annotations

from torch import Tensor


def residual_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """x and the residual [M, N] afterwards, in fp64; the norm is that of the residual as it is
    stored."""
    total = x.double() + residual.double()
    scale = (total.square().mean(1, keepdim=True) + eps).rsqrt()
    stored = total.to(x.dtype).double()
    return stored * scale * weight.double(), stored
