"""The oracle of cutlass_gemm."""

from __future__ import annotations

import torch


def cutlass_gemm(a: torch.Tensor, b: torch.Tensor, trans_b: bool = False) -> torch.Tensor:
    """a b of a [M, K] and b [K, N], or a b^T of b [N, K], in fp64."""
    return a.double() @ (b.double().T if trans_b else b.double())
