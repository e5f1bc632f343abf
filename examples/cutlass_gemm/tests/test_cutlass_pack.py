"""The package, as installed."""

import cutlass_pack
import pytest
import torch

import kernelmint

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_its_kernels_are_listed_beside_kernelmints() -> None:
    assert {info.target for info in kernelmint.kernels("cutlass_gemm")} <= {"sm80", "sm90a"}
    assert kernelmint.kernels("flash_forward")


@gpu
@pytest.mark.parametrize("trans_b", [False, True])
def test_the_function_the_operator_and_torch_agree(trans_b: bool) -> None:
    a, b = torch.randn(2, 64, 64, device="cuda", dtype=torch.bfloat16)
    want = a @ (b.T if trans_b else b)
    got = cutlass_pack.cutlass_gemm(a, b, trans_b=trans_b)
    assert torch.allclose(got.float(), want.float(), rtol=2e-2, atol=1e-1)
    compiled = torch.compile(cutlass_pack.cutlass_gemm, fullgraph=True)
    assert torch.equal(compiled(a, b, trans_b=trans_b), got)
