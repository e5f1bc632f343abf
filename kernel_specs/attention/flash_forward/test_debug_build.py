"""A debug build (KERNELMINT_DEBUG=ON: -G, device assertions) on a GPU.

Its kernels are right, and an assertion that does not hold says so. No call can break one, as calls
are checked; so the build is of a copy of the specs, in which a target forgets its alignment.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

pytestmark = [pytest.mark.build, pytest.mark.gpu]

ROOT = Path(__file__).resolve().parents[3]
WHERE = "d_head == 64 and B_r == 64 and not trace"
RIGHT = """
import torch, runtime
from tools.families import oracle
keys = [info.key for info in runtime.kernels("flash_forward") if info.available]
for key in keys:
    info = runtime.kernel(key).info
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[info.parameters["dtype"]]
    for seq_q, seq_k in ((1, 1), (130, 65), (257, 321)):
        q, k, v = (
            torch.randn(2, n, 2, 64, device="cuda").to(dtype) for n in (seq_q, seq_k, seq_k)
        )
        o, lse = runtime.kernel(key)(q, k, v, return_lse=True)
        want, want_lse = oracle("flash_forward")(
            q, k, v, causal=info.parameters["causal"], return_lse=True
        )
        assert (o.double() - want).abs().max() <= 2 * torch.finfo(dtype).eps * v.abs().max()
        seen = ~want_lse.isneginf()
        assert (lse.double() - want_lse)[seen].abs().max() <= 1e-4
    print("right:", key)
"""
MISALIGNED = """
import torch, runtime
key = next(info.key for info in runtime.kernels("flash_forward", where="dtype == 'bf16'"))
q = torch.randn(1, 64, 1, 64, device="cuda").bfloat16()
k = torch.randn(64 * 64 + 1, device="cuda").bfloat16()[1:].view(1, 64, 1, 64)
runtime.kernel(key)(q, k, q)
torch.cuda.synchronize()
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory, separate_build):
    """Python with a debug build of four kernels."""
    folder = tmp_path_factory.mktemp("debug")
    specs = folder / "specs/attention/flash_forward"
    shutil.copytree(ROOT / "kernel_specs/attention/flash_forward", specs)
    (specs / "cpu.yaml").unlink()
    spec = (specs / "sm80.yaml").read_text()
    assert spec.count("\nalignment: 16\n") == 1
    (specs / "sm80.yaml").write_text(spec.replace("\nalignment: 16\n", "\nalignment: 2\n"))
    build = separate_build(
        folder, WHERE, kernels=4, specs=folder / "specs", defines=("KERNELMINT_DEBUG=ON",)
    )
    return build.python


def test_its_kernels_are_right(python) -> None:
    done = python(RIGHT)
    assert done.returncode == 0, done.stdout
    assert len(re.findall(r"^right: flash_forward\.sm80\.", done.stdout, re.M)) == 4, done.stdout


def test_a_failed_assertion_names_its_place_and_condition(python) -> None:
    done = python(MISALIGNED)
    assert done.returncode != 0, done.stdout
    message = (
        r"attention/sm80_tiles\.cuh:\d+: block 0, thread \d+: "
        r"assertion failed: reinterpret_cast<std::uintptr_t>\(source_\) % 16 == 0$"
    )
    assert re.search(message, done.stdout, re.M), done.stdout
    assert "CUDA error" in done.stdout
