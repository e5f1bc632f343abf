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


@pytest.mark.parametrize("device", ["cpu"] + ["cuda"] * torch.cuda.is_available())
def test_the_function_the_key_and_the_operator_agree(device: str) -> None:
    x, y = torch.randn(2, 3, 1000, device=device)
    function = kernelmint.${family}
    expected = function(x, y, alpha=0.5)
    target = "cpu" if device == "cpu" else "sm80"
    info = kernelmint.kernels("${family}", target, "dtype == f32")[0]
    assert torch.equal(kernelmint.kernel(info.key)(x, y, alpha=0.5), expected)
    assert torch.equal(torch.ops.kernelmint.${family}(info.key, x, y, alpha=0.5), expected)
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, y, alpha=0.5), expected)
