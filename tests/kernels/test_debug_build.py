"""A debug build (KERNELMINT_DEBUG=ON: -G, device assertions) on a GPU.

Its kernels are right, and an assertion that does not hold says so. No call can break one, as calls
are checked; so the build is of a copy of the specs, in which a target forgets its alignment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.build,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

ROOT = Path(__file__).resolve().parents[2]
WHERE = "d_head == 64 and B_r == 64 and not trace"
PRELUDE = """
import sys
# Not the checkout's editable install, whose finder comes before every path.
sys.meta_path = [f for f in sys.meta_path if "Redirecting" not in type(f).__name__]
import torch
import runtime
"""
RIGHT = """
from tools.oracle import oracle
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
key = next(info.key for info in runtime.kernels("flash_forward", where="dtype == 'bf16'"))
q = torch.randn(1, 64, 1, 64, device="cuda").bfloat16()
k = torch.randn(64 * 64 + 1, device="cuda").bfloat16()[1:].view(1, 64, 1, 64)
runtime.kernel(key)(q, k, q)
torch.cuda.synchronize()
"""


def run(*command: str | Path, cwd: Path = ROOT, **environment: str):
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Python with a debug build of four kernels."""
    folder = tmp_path_factory.mktemp("debug")
    specs = folder / "specs/flash_forward"
    shutil.copytree(ROOT / "kernel_specs/flash_forward", specs)
    (specs / "cpu.yaml").unlink()
    spec = (specs / "sm80.yaml").read_text()
    assert spec.count("\nalignment: 16\n") == 1
    (specs / "sm80.yaml").write_text(spec.replace("\nalignment: 16\n", "\nalignment: 2\n"))
    done = run(
        *(sys.executable, "-m", "codegen", "regenerate", "--specs", folder / "specs"),
        *("--out", folder / "generated", "--where", WHERE),
    )
    assert "4 kernels" in done.stdout, done.stdout
    done = run(
        *(sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation"),
        *("--wheel-dir", folder / "dist", "-C", f"build-dir={folder / 'build'}"),
        *("-C", f"cmake.define.KERNELMINT_GENERATED_DIR={folder / 'generated'}"),
        *("-C", "cmake.define.KERNELMINT_DEBUG=ON"),
    )
    assert done.returncode == 0, done.stdout[-4000:]
    (wheel,) = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    path = os.pathsep.join([str(folder / "site"), os.environ.get("PYTHONPATH", "")])
    return lambda text: run(sys.executable, "-c", PRELUDE + text, cwd=folder, PYTHONPATH=path)


def test_its_kernels_are_right(python) -> None:
    done = python(RIGHT)
    assert done.returncode == 0, done.stdout
    assert len(re.findall(r"^right: flash_forward\.sm80\.", done.stdout, re.M)) == 4, done.stdout


def test_an_assertion_that_does_not_hold_says_so(python) -> None:
    done = python(MISALIGNED)
    assert done.returncode != 0, done.stdout
    message = (
        r"flash_forward/sm80_tiles\.cuh:\d+: block 0, thread \d+: "
        r"not so: reinterpret_cast<std::uintptr_t>\(source_\) % 16 == 0$"
    )
    assert re.search(message, done.stdout, re.M), done.stdout
    assert "CUDA error" in done.stdout
