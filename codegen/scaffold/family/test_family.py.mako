"""Every kernel of ${family} against the fp64 oracle; those that cannot run here are skipped."""

from __future__ import annotations

import runpy
from pathlib import Path

import kernelmint
import pytest
import torch

HERE = Path(__file__).parent
if "${family}" not in kernelmint.families():
    kernelmint.load(HERE)  # in no installed pack: kernels are built when they are first called
reference = runpy.run_path(str(HERE / "reference.py"))["${family}"]

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "f32": torch.float32}
KERNELS = [
    pytest.param(
        info, id=info.key, marks=pytest.mark.skipif(not info.available, reason=info.reason or "")
    )
    for info in kernelmint.kernels(family="${family}")
]


@pytest.mark.parametrize("info", KERNELS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 100), (2, 8192), (5, 10007)])
def test_matches_reference(info: kernelmint.KernelInfo, shape: tuple[int, int]) -> None:
    device = "cpu" if info.target == "cpu" else "cuda"
    dtype = DTYPES[info.parameters["dtype"]]
    x, y = (torch.randn(shape, device=device).to(dtype) for _ in range(2))
    z = torch.full_like(x, torch.nan)
    kernelmint.kernel(info.key)(x, y, alpha=0.3, out=z)
    expected = reference(x, y, 0.3)
    # One rounding to the dtype (if it has subnormals left, of the least of them), and those of
    # alpha and of the sum to f32.
    kind = torch.finfo(dtype)
    rounding = kind.eps / 2 * expected.abs().clamp(min=kind.smallest_normal)
    in_f32 = torch.finfo(torch.float32).eps * (0.3 * x.abs().double() + y.abs().double())
    assert ((z.double() - expected).abs() <= rounding + in_f32).all()
