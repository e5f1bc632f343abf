"""The oracle of cutlass_gemm."""

from __future__ import annotations

import torch


def cutlass_gemm(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None, trans_b: bool = False
) -> torch.Tensor:
    """Returns a b + bias for a [M, K] and b [K, N], or a b^T + bias for b [N, K], in fp64; bias
    [N]."""
    product = a.double() @ (b.double().T if trans_b else b.double())
    return product if bias is None else product + bias.double()
