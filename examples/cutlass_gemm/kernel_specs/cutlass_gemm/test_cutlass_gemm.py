"""Every kernel of cutlass_gemm that can run here, against the fp64 oracle."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

import kernelmint

reference = runpy.run_path(str(Path(__file__).with_name("reference.py")))["cutlass_gemm"]

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
KERNELS = [info for info in kernelmint.kernels(family="cutlass_gemm") if info.available]
SHAPES = [  # M, N, K: one row, less than a tile, tiles that are not full, whole ones, long sums
    (1, 8, 8), (3, 40, 24), (127, 136, 72), (128, 256, 64), (257, 520, 1032), (1000, 1000, 4096),
]  # fmt: skip


def operands(
    info: kernelmint.KernelInfo, m: int, n: int, k: int, padding: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """a, b and a poisoned d; rows are followed by `padding` elements, all of them NaN."""
    dtype = DTYPES[info.parameters["dtype"]]
    shapes = [(m, k), (n, k) if info.parameters["trans_b"] else (k, n), (m, n)]
    padded = [
        torch.full((r, c + padding), torch.nan, device="cuda", dtype=dtype) for r, c in shapes
    ]
    views = [t[:, :c] for t, (_, c) in zip(padded, shapes, strict=True)]
    for view in views[:2]:
        view.copy_(torch.randn(view.shape))
    return views[0], views[1], views[2]


def check(info: kernelmint.KernelInfo, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> None:
    """Calls the kernel, with a bias if it takes one, and holds d to the oracle."""
    bias = None
    if info.parameters["with_bias"]:
        bias = torch.randn(d.shape[1], device="cuda").to(d.dtype)
    kernelmint.kernel(info.key)(a, b, bias, out=d)
    want = reference(a, b, bias, info.parameters["trans_b"])
    magnitude = None if bias is None else bias.abs()
    sizes = reference(a.abs(), b.abs(), magnitude, info.parameters["trans_b"])
    # One rounding to the dtype, and those of K fp32 additions, whose error the tensor core's
    # truncation doubles at most.
    bound = torch.finfo(a.dtype).eps / 2 * want.abs()
    bound += 2 * (a.shape[1] + 1) * torch.finfo(torch.float32).eps * sizes
    assert ((d.double() - want).abs() <= bound + torch.finfo(a.dtype).smallest_normal).all()


@pytest.mark.parametrize("info", KERNELS, ids=lambda info: info.key)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matches_reference(info: kernelmint.KernelInfo, shape: tuple[int, int, int]) -> None:
    a, b, d = operands(info, *shape)
    check(info, a, b, d)


@pytest.mark.parametrize("info", KERNELS, ids=lambda info: info.key)
def test_rows_may_be_apart_and_what_lies_between_is_not_touched(
    info: kernelmint.KernelInfo,
) -> None:
    a, b, d = operands(info, 200, 264, 328, padding=8)
    check(info, a, b, d)
    whole = d.as_strided((200, 272), (272, 1))
    assert whole[:, 264:].isnan().all()


def test_a_bias_that_a_kernel_does_not_take_or_lacks_is_refused() -> None:
    for info in KERNELS:
        a, b, d = operands(info, 8, 16, 8)
        bias = None if info.parameters["with_bias"] else torch.zeros_like(d[0])
        with pytest.raises(kernelmint.InvalidArgument, match="with a bias or without"):
            kernelmint.kernel(info.key)(a, b, bias)


@pytest.mark.parametrize("info", KERNELS, ids=lambda info: info.key)
@pytest.mark.parametrize(("n", "k", "why"), [(8, 12, "16 bytes of a row"), (12, 8, "16 bytes of")])
def test_what_tma_and_cp_async_do_not_take_is_refused(info, n, k, why) -> None:
    a, b, _ = operands(info, 8, n, k)
    with pytest.raises(kernelmint.InvalidArgument, match=why):
        kernelmint.kernel(info.key)(a, b)
