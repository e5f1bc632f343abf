"""cutlass_gemm without a key: picks a kernel that suits the arguments."""

from __future__ import annotations

import torch

import runtime
from runtime import catalog, choice, tensors


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
        b: [K, N], like a; [N, K] where `trans_b`. N is a multiple of 8.
        bias: added to each row, [N], like a.
        trans_b: whether b is given as its transpose.
        out: where to write: [M, N], like a.

    Returns:
        [M, N], like a.

    Raises:
        KernelNotFound: no kernel suits; the message says for each candidate why.
        InvalidArgument: an argument is wrong.
    """
    extents = (*tensors.extents("a", a, 2), *tensors.extents("b", b, 2))
    sizes = dict(zip(("M", "K", "R", "S"), extents, strict=True))
    kind = a.device, a.dtype, trans_b, bias is not None
    key = _key(*kind, choice.covered(_tuned_ranges(*kind), sizes))
    return runtime.kernel(key)(a, b, bias, out=out)


def _wanted(dtype: torch.dtype, trans_b: bool, with_bias: bool) -> dict[str, str | bool]:
    name = catalog.dtype_name(dtype) or str(dtype)
    return {"dtype": name, "trans_b": trans_b, "with_bias": with_bias}


@choice.traced_as_constant
def _tuned_ranges(
    device: torch.device, dtype: torch.dtype, trans_b: bool, with_bias: bool
) -> choice.Ranges:
    return choice.ranges("cutlass_gemm", device, _wanted(dtype, trans_b, with_bias))


@choice.traced_as_constant
def _key(
    device: torch.device,
    dtype: torch.dtype,
    trans_b: bool,
    with_bias: bool,
    covering: tuple[int, ...],
) -> str:
    wanted = _wanted(dtype, trans_b, with_bias)
    return choice.choose("cutlass_gemm", device, wanted, covering=covering).info.key
