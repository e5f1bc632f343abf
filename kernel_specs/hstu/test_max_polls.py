"""The tiles of a token do not have to wait for each other: those that leave lose nothing.

Whether any leaves depends on the GPU's load; here a build is made in which all but the last do.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import runtime

pytestmark = [pytest.mark.build, pytest.mark.gpu]

KEY = "block_sparse.sm80.a32-l64-bs32-s4-fixed-bf16-tiles-w8"
CALL = """
import torch, runtime
assert sys.argv[2] in runtime.__file__, runtime.__file__
cases = torch.load(sys.argv[1])
kernel = runtime.kernel(sys.argv[3])
results = [[x.cpu() for x in kernel(*(y.cuda() for y in case))] for case in cases]
torch.save(results, sys.argv[1] + ".out")
"""


def inputs(B: int, T: int, H: int) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(T)
    rows = [torch.randn(B, T, H, size, generator=g) for size in (32, 32, 64, 64)]
    return [*rows, torch.rand(B, T, H, generator=g)]


def test_what_the_last_one_finishes_is_the_same(tmp_path: Path, separate_build) -> None:
    hasty = separate_build(
        tmp_path,
        "family == 'block_sparse' and target == 'sm80' and attention_dim == 32 and dot == bf16",
        kernels=2,
        defines=("CMAKE_CUDA_FLAGS=-DKERNELMINT_HSTU_MAX_POLLS=0",),
    )
    cases = [inputs(2, T, H) for T in (1, 100, 128, 300, 2000) for H in (2, 8, 24)]
    saved = tmp_path / "cases.pt"
    torch.save(cases, saved)
    done = hasty.python(CALL, saved, tmp_path, KEY)
    assert done.returncode == 0, done.stdout
    kernel = runtime.kernel(KEY)
    for case, results in zip(cases, torch.load(f"{saved}.out"), strict=True):
        expected = kernel(*(x.cuda() for x in case))
        for actual, wanted in zip(results, expected, strict=True):
            assert torch.equal(actual, wanted.cpu())
