"""Comparisons that need a GPU: results beside those of upstream's own build, bit by bit, upstream's
tests, `kernelmint verify`, and times. It needs this package, einops, pytest, nvcc and a C++
compiler, and no network if KERNELMINT_SOURCES names a folder that `kernelmint sources --to FOLDER`
filled. Kernels that the package does not hold are built.

    python on_gpu.py [--every N] [build compare compiled bench tests verify]

The words are steps; all of them by default, and one that fails does not stop the next. It exits
with 1 if something differs.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import causal_conv1d_pack
import torch
from kernelmint.tools.bench import print_times
from torch import Tensor
from torch.utils import cpp_extension
from upstream_tests import upstream

HERE = Path(__file__).resolve().parent
FILES = ("causal_conv1d.cpp", *(f"causal_conv1d_{name}.cu" for name in ("fwd", "bwd", "update")))
FLAGS = ["-O3", "--use_fast_math", "--expt-relaxed-constexpr", "--expt-extended-lambda"]
FLAGS += [f"-U__CUDA_NO_{what}__" for what in (
    "HALF_OPERATORS", "HALF_CONVERSIONS", "BFLOAT16_OPERATORS", "BFLOAT16_CONVERSIONS",
    "BFLOAT162_OPERATORS", "BFLOAT162_CONVERSIONS",
)]  # fmt: skip
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
Calls = dict[str, Callable[[], Any]]


@functools.cache
def built_by_upstream() -> ModuleType:
    """Returns upstream's extension, by PyTorch's build, with the flags of its setup.py, only for
    this GPU; it is built into TORCH_EXTENSIONS_DIR, from where it is loaded the next time."""
    begin = time.perf_counter()
    major, minor = torch.cuda.get_device_capability()
    os.environ["TORCH_CUDA_ARCH_LIST"] = f"{major}.{minor}"
    sources = [str(upstream() / "csrc" / name) for name in FILES]
    module = cpp_extension.load(
        "causal_conv1d_cuda", sources, extra_cflags=["-O3"], extra_cuda_cflags=FLAGS
    )
    print(f"upstream's extension: built, or found, in {time.perf_counter() - begin:.1f} s")
    return module


class Call:
    """Operands of a call, and the results of both."""

    def __init__(self, theirs: ModuleType | None, dtype: torch.dtype, weight_dtype: torch.dtype,
                 width: int, length: int, channel_last: bool,
                 size: tuple[int, int] = (3, 128)) -> None:  # fmt: skip
        torch.manual_seed(length)
        self.theirs, self.size = theirs, size
        self.x, self.dy = (self._like_x(length, dtype, channel_last) for _ in range(2))
        self.weight = torch.randn(size[1], width, device="cuda", dtype=weight_dtype)
        self.bias = torch.randn(size[1], device="cuda", dtype=weight_dtype)
        self.states, self.dstates = (self._like_x(width - 1, dtype, True) for _ in range(2))

    def _like_x(self, length: int, dtype: torch.dtype, channel_last: bool) -> Tensor:
        batch, dim = self.size
        x = torch.randn(batch, length, dim, device="cuda", dtype=dtype).transpose(1, 2)
        return x if channel_last else x.contiguous()

    def by_theirs(self, silu: bool, seq_idx: Tensor | None, with_states: bool) -> list[Tensor]:
        """Returns y, final states, dx, dstates, dweight and dbias by upstream."""
        states, dstates = (self.states, self.dstates) if with_states else (None, None)
        y, dx = torch.empty_like(self.x), torch.empty_like(self.x)
        final, dinitial = (torch.empty_like(self.states) if with_states else None for _ in "ab")
        sums = [torch.zeros_like(t, dtype=torch.float32) for t in (self.weight, self.bias)]
        self.theirs.causal_conv1d_fwd(
            self.x, self.weight, self.bias, seq_idx, states, y, final, silu
        )
        self.theirs.causal_conv1d_bwd(
            self.x, self.weight, self.bias, self.dy, seq_idx, states, dstates, dx, *sums, dinitial,
            silu,
        )  # fmt: skip
        results = [y, dx, *([final, dinitial] if with_states else [])]
        return [*results, *(s.to(self.weight.dtype) for s in sums)]

    def by_ours(self, silu: bool, seq_idx: Tensor | None, with_states: bool) -> list[Tensor]:
        """Returns y, final states, dx, dstates, dweight and dbias by this package."""
        leaves = [self.x, *([self.states] if with_states else []), self.weight, self.bias]
        leaves = [t.detach().requires_grad_() for t in leaves]
        states = leaves[1] if with_states else None
        activation = "silu" if silu else None
        forward = causal_conv1d_pack.causal_conv1d_fn(
            leaves[0], *leaves[-2:], seq_idx, states, with_states, None, activation
        )
        results, gradients = (
            (forward, (self.dy, self.dstates)) if with_states else (forward, self.dy)
        )
        backward = torch.autograd.grad(results, leaves, gradients)
        if not with_states:
            return [forward, *backward]
        return [forward[0], backward[0], forward[1], *backward[1:]]


def compare() -> bool:
    """Compares all results but dweight and dbias bit by bit; atomics add those up, so they are
    compared nearly."""
    theirs, good, count = built_by_upstream(), True, 0
    kinds = itertools.product(DTYPES, DTYPES, (2, 3, 4), (5, 64, 300), (False, True))
    for dtype, weight_dtype, width, length, channel_last in kinds:
        call = Call(theirs, dtype, weight_dtype, width, length, channel_last)
        ids = (torch.arange(length, device="cuda") // 37).int().expand(3, -1).contiguous()
        variants = [(False, None, False), (True, None, False)]
        if channel_last:
            variants += [(True, ids, False), (True, None, True)]
        for silu, seq_idx, with_states in variants:
            results = [by(silu, seq_idx, with_states) for by in (call.by_theirs, call.by_ours)]
            *exact, dweight, dbias = zip(*results, strict=True)
            same = all(torch.equal(a, b) for a, b in exact)
            near = all(torch.allclose(a, b, 1e-2, 1e-2) for a, b in (dweight, dbias))
            count += 1
            if not (same and near):
                good = False
                print(f"{dtype} {weight_dtype} width {width}, {length}, {channel_last=}, {silu=}, "
                      f"{seq_idx is not None=}, {with_states=}: {same=} {near=}")  # fmt: skip
    print(f"forward and backward: {count} calls {'agree' if good else 'DIFFER'}")
    return good


def compare_updates() -> bool:
    """Compares y and conv_state, bit by bit."""
    theirs, good, count = built_by_upstream(), True, 0
    for dtype, weight_dtype, width, length in itertools.product(DTYPES, DTYPES, (2, 3, 4), (1, 5)):
        call = Call(theirs, dtype, weight_dtype, width, length, True)
        state = torch.randn(9, 128, width + 2, device="cuda", dtype=dtype)
        where = torch.tensor([4, -1, 0], dtype=torch.int32, device="cuda")
        begin = torch.tensor([0, 7, 1000], dtype=torch.int32, device="cuda")
        for entries, indices, ring in ((9, where, None), (3, None, begin), (3, None, None)):
            states = [state[:entries].clone() for _ in range(2)]
            y = torch.empty_like(call.x)
            theirs.causal_conv1d_update(
                call.x, states[0], call.weight, call.bias, y, True, ring, indices
            )
            got = causal_conv1d_pack.causal_conv1d_update(
                call.x, states[1], call.weight, call.bias, "silu", ring, indices
            )
            count += 1
            good &= torch.equal(y, got) and torch.equal(*states)
    print(f"updates: {count} calls {'agree' if good else 'DIFFER'}")
    return good


def compare_compiled() -> bool:
    """Compares torch.compile's graph with eager calls, forward and backward."""
    call, results = Call(None, torch.bfloat16, torch.float32, 4, 256, True), []
    eager = causal_conv1d_pack.causal_conv1d_fn
    for function in (eager, torch.compile(eager, fullgraph=True)):
        leaves = [t.detach().requires_grad_() for t in (call.x, call.weight, call.bias)]
        y = function(*leaves, activation="silu")
        results.append([y, torch.autograd.grad(y, leaves, call.dy)[0]])
    same = all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    print(f"compiled: y and dx {'agree' if same else 'DIFFER'}")
    return same


def passes() -> Iterator[tuple[str, Calls, Calls]]:
    """Yields cells, and the calls of their forward and backward passes, here and of upstream."""
    theirs = built_by_upstream()
    for channel_last, length in itertools.product((False, True), (2048, 2056, 16384)):
        call = Call(theirs, torch.bfloat16, torch.float32, 4, length, channel_last, (4, 4096))
        x, weight, bias, dy = call.x, call.weight, call.bias, call.dy
        y, dx = torch.empty_like(x), torch.empty_like(x)
        sums = [torch.zeros_like(t) for t in (weight, bias)]
        leaves = [t.detach().requires_grad_() for t in (x, weight, bias)]
        result = causal_conv1d_pack.causal_conv1d_fn(*leaves, activation="silu")

        def forward(x=x, weight=weight, bias=bias, y=y) -> Tensor:
            theirs.causal_conv1d_fwd(x, weight, bias, None, None, y, None, True)
            return y

        def backward(x=x, weight=weight, bias=bias, dy=dy, dx=dx, sums=sums) -> list[Tensor]:
            for one in sums:
                one.zero_()
            theirs.causal_conv1d_bwd(x, weight, bias, dy, None, None, None, dx, *sums, None, True)
            return [dx, *sums]

        front = partial(causal_conv1d_pack.causal_conv1d_fn, x, weight, bias, activation="silu")
        gradients = partial(torch.autograd.grad, result, leaves, dy, retain_graph=True)
        yield (
            f"{length}, channel last" if channel_last else str(length),
            {"here": front, "upstream's binding": forward},
            {"here": gradients, "upstream's binding": backward},
        )


def bench() -> bool:
    """Prints times of upstream's extension and of the kernels here, in turns; then the cost of
    calls for the host."""
    device = torch.device("cuda")
    good = print_times("forward", ((size, calls) for size, calls, _ in passes()), device)
    good &= print_times("backward", ((size, calls) for size, _, calls in passes()), device)
    theirs = built_by_upstream()
    x = torch.randn(1, 64, 1, device="cuda")
    state = x.expand(1, 64, 3).contiguous()  # an update leaves such a state as it is
    weight, y = torch.randn(64, 4, device="cuda"), torch.empty_like(x)
    sys.modules["causal_conv1d_cuda"] = theirs
    sys.path.insert(0, str(upstream()))
    import causal_conv1d  # upstream's functions, on its extension

    def update_theirs() -> Tensor:
        theirs.causal_conv1d_update(x, state, weight, None, y, True, None, None)
        return y

    def forward_theirs() -> Tensor:
        theirs.causal_conv1d_fwd(x, weight, None, None, None, y, None, True)
        return y

    def ways(name: str, binding: Callable[[], Any], *arguments: Any, **options: Any) -> Calls:
        here, there = (getattr(module, name) for module in (causal_conv1d_pack, causal_conv1d))
        return {
            "here": partial(here, *arguments, **options),
            "upstream's binding": binding,
            "upstream's function": partial(there, *arguments, **options),
        }

    calls = {
        "update": ways("causal_conv1d_update", update_theirs, x, state, weight, None, "silu"),
        "forward": ways("causal_conv1d_fn", forward_theirs, x, weight, activation="silu"),
    }
    return print_times("a call on the host", calls.items(), device, host=True) and good


def run(*command: str) -> bool:
    """Runs a command of this Python; returns whether it succeeds."""
    return subprocess.run([sys.executable, *command], check=False).returncode == 0


def main() -> None:
    """Runs steps, all of them by default; exit status 1 if something differs or fails."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--every", default="20", help="each Nth of upstream's tests; 1: all")
    steps: dict[str, Callable[[], bool]] = {
        "build": lambda: bool(built_by_upstream()),
        "compare": compare,
        "updates": compare_updates,
        "compiled": compare_compiled,
        "bench": bench,
        "tests": lambda: run(str(HERE / "upstream_tests.py"), "--every", options.every),
        "verify": lambda: run("-m", "kernelmint", "verify", "causal_conv1d_pack"),
    }
    parser.add_argument("steps", nargs="*", default=list(steps), metavar="STEP")
    options = parser.parse_args()
    if unknown := set(options.steps) - set(steps):
        parser.error(f"got {', '.join(sorted(unknown))}, expected some of {', '.join(steps)}")
    os.environ.setdefault("KERNELMINT_BUILD", "missing")
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    good = True
    for step in options.steps:
        try:
            right = steps[step]()
        except Exception:  # the next step is to be seen, too
            traceback.print_exc()
            right = False
        print(f"{step}: {'ok' if right else 'FAILED'}", flush=True)
        good &= right
    sys.exit(not good)


if __name__ == "__main__":
    main()
