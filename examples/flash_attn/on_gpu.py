"""What can be shown on a GPU alone: upstream's own tests, results beside those of PyTorch's
FlashAttention-2, `kernelmint verify`, and times. It needs this package, einops and pytest, and no
network if KERNELMINT_SOURCES names a folder that `kernelmint sources --to FOLDER` filled.

    python on_gpu.py [--tests N] [--seed N]

Tests whose kernel is neither built nor can be built here are counted as left out, with the reason.
"""

from __future__ import annotations

import argparse
import importlib.resources
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import flash_attn_pack
import torch
import yaml

from codegen import archives

# As the archive's package would be, but for what it compiles: its other modules are its own.
PACKAGE = "from flash_attn_pack import *\n__path__.append({upstream!r})\n"
INTERFACE = """
from flash_attn_pack.flash_attn_interface import *
from flash_attn_pack.flash_attn_interface import _get_block_size_n
"""
CONFTEST = """
import random
import pytest
import kernelmint

def pytest_collection_modifyitems(items):
    by_test = {}
    for item in items:
        by_test.setdefault(item.originalname, []).append(item)
    generator = random.Random(SEED)
    items[:] = [i for t in by_test.values() for i in generator.sample(t, min(TESTS, len(t)))]

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    outcome = yield
    error = outcome.excinfo and outcome.excinfo[1]
    if isinstance(error, (kernelmint.KernelNotFound, kernelmint.BuildError)):
        outcome.force_exception(pytest.skip.Exception(str(error).splitlines()[0]))
"""


def upstream() -> Path:
    """The archive that the specs pin."""
    specs = importlib.resources.files(flash_attn_pack) / "_pack/kernel_specs/flash_attn/sm80.yaml"
    if not specs.is_file():  # an editable install's are the project's
        specs = Path(__file__).parent / "kernel_specs/flash_attn/sm80.yaml"
    pin = yaml.safe_load(specs.read_text())["build"]["archives"]["upstream"]
    return archives.folder(f"pypi:{pin['pypi']}=={pin['version']}", pin["sha256"])


def run_upstreams_tests(tests: int, seed: int) -> bool:
    """Its test file as it is, `tests` of each function's cases."""
    folder = upstream()
    with tempfile.TemporaryDirectory() as work:
        package = Path(work) / "flash_attn"
        package.mkdir()
        package.joinpath("__init__.py").write_text(
            PACKAGE.format(upstream=str(folder / "flash_attn"))
        )
        package.joinpath("flash_attn_interface.py").write_text(INTERFACE)
        conftest = CONFTEST.replace("SEED", str(seed)).replace("TESTS", str(tests))
        Path(work, "conftest.py").write_text(conftest)
        Path(work, "test_flash_attn.py").write_bytes(
            folder.joinpath("tests/test_flash_attn.py").read_bytes()
        )
        command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", work]
        environment = {**os.environ, "PYTHONPATH": work}
        return subprocess.run(command, env=environment, cwd=work, check=False).returncode == 0


def inputs(batch: int, seqlen: int, heads: int, head_dim: int, dtype: torch.dtype) -> list:
    """q, k, v and dout."""
    torch.manual_seed(0)
    shape = (batch, seqlen, heads, head_dim)
    return [torch.randn(shape, device="cuda", dtype=dtype) for _ in range(4)]


def passes(q, k, v, dout, causal: bool, dropout: float = 0.0) -> tuple[Callable, Callable]:
    """The forward and backward pass of PyTorch's FlashAttention-2 and of ours, each [out, lse] and
    [dq, dk, dv]."""
    scale, (_, sq, _, _), sk = q.shape[-1] ** -0.5, q.shape, k.shape[1]

    def theirs() -> tuple[list, Callable]:
        out, lse, rng, unused, _ = torch.ops.aten._flash_attention_forward(
            q, k, v, None, None, sq, sk, dropout, causal, False, scale=scale
        )
        return [out, lse], lambda: torch.ops.aten._flash_attention_backward(
            dout, q, k, v, out, lse, None, None, sq, sk, dropout, causal, rng, unused, scale=scale
        )

    def ours() -> tuple[list, Callable]:
        leaves = [t.detach().requires_grad_() for t in (q, k, v)]
        out, lse, _ = flash_attn_pack.flash_attn_func(
            *leaves, dropout, causal=causal, return_attn_probs=True
        )
        return [out, lse], lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)

    return theirs, ours


def compare_with_pytorch() -> bool:
    """Bits of out, lse, dk and dv; dq is added up in no order, so its largest difference."""
    good = True
    shapes = ((2, 1024, 8, 64), (2, 1024, 8, 128), (2, 1000, 8, 128), (4, 70, 3, 64))
    dtypes = (torch.bfloat16, torch.float16)
    for shape, dtype, causal in itertools.product(shapes, dtypes, (False, True)):
        results = []
        for run in passes(*inputs(*shape, dtype), causal):
            forward, backward = run()
            results.append([*forward, *backward()])
        names = ("out", "lse", "dq", "dk", "dv")
        equal = {n: torch.equal(a, b) for n, a, b in zip(names, *results, strict=True)}
        dq = (results[0][2].float() - results[1][2].float()).abs().max().item()
        print(f"{shape} {dtype} causal={causal}: equal {equal}, dq differs by {dq:.2e}")
        good &= all(equal[n] for n in names if n != "dq")
    return good


def compare_compiled() -> bool:
    """torch.compile's graph beside eager calls, forward and backward."""
    q, k, v, dout = inputs(2, 512, 4, 64, torch.bfloat16)
    results = []
    for call in (
        flash_attn_pack.flash_attn_func,
        torch.compile(flash_attn_pack.flash_attn_func, fullgraph=True),
    ):
        leaves = [t.detach().requires_grad_() for t in (q, k, v)]
        out = call(*leaves, causal=True)
        results.append([out, *torch.autograd.grad(out, leaves, dout)[1:]])
    equal = [torch.equal(a, b) for a, b in zip(*results, strict=True)]
    print(f"compiled: out, dk, dv equal {equal}")
    return all(equal)


def milliseconds(call: Callable, times: int = 30) -> float:
    """The median of calls, L2 overwritten before each."""
    flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    found = []
    for _ in range(times + 3):
        flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end))
    return sorted(found[3:])[times // 2]


def bench() -> None:
    """Ours beside PyTorch's, in turns; the least of three medians."""
    for head_dim, causal, seqlen in itertools.product((64, 128), (False, True), (1024, 4096)):
        tensors = inputs(4, seqlen, 16, head_dim, torch.bfloat16)
        theirs, ours = passes(*tensors, causal)
        forwards = [lambda run=run: run()[0] for run in (theirs, ours)]
        backwards = [theirs()[1], ours()[1]]
        for name, calls in (("forward", forwards), ("backward", backwards)):
            a, b = (min(t) for t in zip(*[map(milliseconds, calls) for _ in range(3)], strict=True))
            print(f"{name} d={head_dim} causal={causal} {seqlen}: {a:.4f} {b:.4f} ms {a / b:.3f}")


def main() -> None:
    """All of it; exit status 1 if something differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tests", type=int, default=60, help="cases of each of upstream's tests")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    options = parser.parse_args()
    print(torch.cuda.get_device_name(), torch.__version__)
    good = [compare_with_pytorch(), compare_compiled()]
    verify = [sys.executable, "-m", "kernelmint", "verify", "flash_attn_pack"]
    good.append(subprocess.run(verify, check=False).returncode == 0)
    good.append(run_upstreams_tests(options.tests, options.seed))
    bench()
    sys.exit(not all(good))


if __name__ == "__main__":
    main()
