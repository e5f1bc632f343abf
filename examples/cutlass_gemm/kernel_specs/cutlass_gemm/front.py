"""cutlass_gemm without a key: picks a kernel that suits the arguments."""

from __future__ import annotations

import torch

from runtime import choice, tensors


def cutlass_gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    trans_b: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The product of two matrices and a bias, its sums in fp32.

    Args:
        a: [M, K], bf16 or fp16 on a GPU; K is a multiple of 8, rows begin at multiples of 16 bytes.
        b: [K, N], like a; [N, K] if `trans_b`. N is a multiple of 8.
        bias: added to each row, [N], like a.
        trans_b: whether b is given as its transpose.
        out: where to write: [M, N], like a.

    Returns:
        [M, N], like a.

    Raises:
        KernelNotFound: no kernel suits; the message says for each candidate why.
        InvalidArgument: an argument is wrong.
    """
    m, k = tensors.extents("a", a, 2)
    r, s = tensors.extents("b", b, 2)
    wanted = {"dtype": a.dtype, "trans_b": trans_b, "with_bias": bias is not None}
    kernel = choice.take("cutlass_gemm", a.device, wanted, {"M": m, "K": k, "R": r, "S": s})
    return kernel(a, b, bias, out=out)
