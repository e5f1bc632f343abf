"""Comparisons that need a GPU: upstream's own tests, results beside those of PyTorch's
FlashAttention-2 and of upstream's binding, `kernelmint verify`, and times. It needs this package,
einops, pytest, nvcc and a C++ compiler, and no network if KERNELMINT_SOURCES names a folder that
`kernelmint sources --to FOLDER` filled.

    python on_gpu.py [--tests N] [--seed N] [--only TEXT]
                     [build pytorch upstream calls compiled bench tests verify]

The words are steps; all of them by default, and one that fails does not stop the next. Of upstream
the binding is built, and its files of a few kernels, which its own switches keep to calls without
ALiBi, caps, dropout, windows and head dimensions between; and a file whole, for the time.

    python on_gpu.py --only fwd_hdim64_bf16_sm80 build calls

is what a call costs the host, with as little of upstream's build as that needs.

Upstream's tests are drawn from the cases whose kernels the package holds (upstream_tests.py).
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import subprocess
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import flash_attn_pack
import torch
from kernelmint.tools.bench import print_times
from torch.utils import cpp_extension
from upstream_tests import upstream

import kernelmint

FLAGS = ["-O3", "-std=c++17", "--use_fast_math", "--expt-relaxed-constexpr"]
FLAGS += ["--expt-extended-lambda", *(f"-U__CUDA_NO_{what}__" for what in (
    "HALF_OPERATORS", "HALF_CONVERSIONS", "HALF2_OPERATORS", "BFLOAT16_CONVERSIONS",
))]  # fmt: skip
SWITCHES = [f"-DFLASHATTENTION_DISABLE_{what}" for what in (
    "ALIBI", "SOFTCAP", "DROPOUT", "LOCAL", "UNEVEN_K",
)]  # fmt: skip
KINDS = ((64, ""), (64, "_causal"), (128, "_causal"))  # head dimension, mask
FILES = [f"flash_{way}_hdim{d}_bf16{mask}_sm80.cu" for way in ("bwd", "fwd") for d, mask in KINDS]
WHOLE = "flash_fwd_hdim64_bf16_causal_sm80.cu"


def inputs(batch: int, seqlen: int, heads: int, head_dim: int, dtype: torch.dtype) -> list:
    """Makes q, k, v and dout."""
    torch.manual_seed(0)
    shape = (batch, seqlen, heads, head_dim)
    return [torch.randn(shape, device="cuda", dtype=dtype) for _ in range(4)]


def passes(q, k, v, dout, causal: bool, dropout: float = 0.0) -> tuple[Callable, Callable]:
    """Returns the forward and backward pass of PyTorch's FlashAttention-2 and of ours, each [out,
    lse] and [dq, dk, dv]."""
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


def kernels(q, k, v, dout, causal: bool) -> Callable:
    """Returns the passes of our kernels as of upstream's binding: by their fronts, without
    autograd."""
    right = 0 if causal else -1

    def ours() -> tuple[list, Callable]:
        out, lse = kernelmint.flash_attn_forward(q, k, v, window_right=right)[:2]
        return [out, lse], lambda: kernelmint.flash_attn_backward(
            dout, q, k, v, out, lse, window_right=right
        )[:3]

    return ours


def same_results(what: str, runs: Sequence[Callable]) -> bool:
    """Compares out, lse, dk and dv bit by bit; dq is added up in no order, so the largest
    difference counts."""
    results = []
    for run in runs:
        forward, backward = run()
        results.append([*forward, *backward()])
    names = ("out", "lse", "dq", "dk", "dv")
    equal = {n: torch.equal(a, b) for n, a, b in zip(names, *results, strict=True)}
    differ = [(a.float() - b.float()).abs().max().item() for a, b in zip(*results, strict=True)]
    far = ", ".join(f"{n} {d:.1e}" for n, d in zip(names, differ, strict=True))
    print(f"{what}: equal {equal}; differences {far}", flush=True)
    return all(equal[n] for n in names if n != "dq")


def compare_with_pytorch() -> bool:
    """Compares results, as same_results does, over shapes, dtypes and masks."""
    good = True
    shapes = ((2, 1024, 8, 64), (2, 1024, 8, 128), (2, 1000, 8, 128), (4, 70, 3, 64))
    dtypes = (torch.bfloat16, torch.float16)
    for shape, dtype, causal in itertools.product(shapes, dtypes, (False, True)):
        what = f"PyTorch {shape} {dtype} causal={causal}"
        good &= same_results(what, passes(*inputs(*shape, dtype), causal))
    return good


def compare_compiled() -> bool:
    """Compares torch.compile's graph with eager calls, forward and backward."""
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


def binding_folder() -> Path:
    """Returns the folder of upstream's binding."""
    root = os.environ.get("TORCH_EXTENSIONS_DIR", "~/.cache/torch_extensions")
    folder = Path(root).expanduser() / "flash_attn_2_cuda"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def build_upstream(only: str) -> bool:
    """Builds upstream's binding and FILES as one extension, and prints the seconds of each file,
    and of WHOLE; of both, only those whose name contains `only`."""
    csrc, folder = upstream() / "csrc", binding_folder()
    headers = [csrc / "flash_attn", csrc / "flash_attn/src", csrc / "cutlass/include"]
    headers += [*map(Path, cpp_extension.include_paths("cuda"))]
    headers.append(Path(sysconfig.get_path("include")))
    common = [*(f"-I{path}" for path in headers), "-DTORCH_EXTENSION_NAME=flash_attn_2_cuda"]
    home = Path(cpp_extension.CUDA_HOME or "/usr/local/cuda")

    def compiled(name: str, switches: Sequence[str], to: str) -> Path | None:
        begin, to_file = time.perf_counter(), folder / f"{to}.o"
        if name.endswith(".cu"):
            source = headers[1] / name
            command = [str(home / "bin/nvcc"), *FLAGS, *switches, "-arch=sm_90", "-Xcompiler=-fPIC"]
        else:
            source = headers[0] / name
            command = ["c++", "-O3", "-std=c++17", "-fPIC"]
        command = [*command, "-w", *common, "-c", str(source), "-o", str(to_file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        how = "" if done.returncode == 0 else f": FAILED: {done.stderr[-2000:]}"
        which = ", its switches on" if switches else ""
        print(f"upstream's {name}{which}: {time.perf_counter() - begin:.1f} s{how}", flush=True)
        return to_file if done.returncode == 0 else None

    files = [name for name in FILES if only in name]
    jobs = [("flash_api.cpp", (), "api"), *((name, SWITCHES, name) for name in files)]
    jobs += [(WHOLE, (), "whole")] if only in WHOLE else []
    with ThreadPoolExecutor(int(os.environ.get("MAX_JOBS", os.cpu_count() or 1))) as pool:
        objects = list(pool.map(lambda job: compiled(*job), jobs))
        if built := None not in objects:
            objects = [path for path in objects if path.name != "whole.o"]
            libraries = [f"-L{path}" for path in cpp_extension.library_paths("cuda")]
            libraries += [f"-l{name}" for name in (
                "c10", "c10_cuda", "torch_cpu", "torch_cuda", "torch", "torch_python", "cudart",
            )]  # fmt: skip
            # A function that these lack is missed when it is called.
            link = ["c++", "-shared", "-Wl,-z,lazy", *map(str, objects), *libraries]
            link += ["-o", str(folder / "flash_attn_2_cuda.so")]
            subprocess.run(link, check=True)
            print("upstream's binding is linked", flush=True)
        return built


def upstreams_binding() -> ModuleType:
    """Returns the binding that build_upstream built."""
    path = binding_folder() / "flash_attn_2_cuda.so"
    spec = importlib.util.spec_from_file_location("flash_attn_2_cuda", path)
    assert spec is not None
    assert spec.loader is not None
    before = sys.getdlopenflags()
    sys.setdlopenflags(os.RTLD_LAZY)
    try:
        module = importlib.util.module_from_spec(spec)
    finally:
        sys.setdlopenflags(before)
    spec.loader.exec_module(module)
    return module


def passes_of_binding(binding: ModuleType, q, k, v, dout, causal: bool) -> Callable:
    """Returns the passes of upstream's binding, in the form of `passes`."""
    scale, right = q.shape[-1] ** -0.5, 0 if causal else -1

    def theirs() -> tuple[list, Callable]:
        out, lse, _, rng = binding.fwd(
            q, k, v, None, None, 0.0, scale, causal, -1, right, 0.0, False, None
        )
        return [out, lse], lambda: binding.bwd(
            dout, q, k, v, out, lse, None, None, None, None, 0.0, scale, causal, -1, right, 0.0,
            False, None, rng,
        )[:3]  # fmt: skip

    return theirs


def compare_with_upstream() -> bool:
    """Compares results as with PyTorch; then prints times of the GPU."""
    binding, good = upstreams_binding(), True
    for (head_dim, mask), seqlen in itertools.product(KINDS, (1024, 1000)):
        tensors = inputs(4, seqlen, 16, head_dim, torch.bfloat16)
        ours = passes(*tensors, bool(mask))[1]
        theirs = passes_of_binding(binding, *tensors, bool(mask))
        what = f"d={head_dim} causal={bool(mask)} {seqlen}"
        good &= same_results(f"upstream {what}", [theirs, ours])
    cells = (
        (f"d={head_dim} causal={bool(mask)} {seqlen}",
         passes_of_binding(binding, *tensors, bool(mask)), kernels(*tensors, bool(mask)))
        for (head_dim, mask), seqlen in itertools.product(KINDS, (1024, 4096))
        for tensors in [inputs(4, seqlen, 16, head_dim, torch.bfloat16)]
    )  # fmt: skip
    return print_passes("upstream", cells) and good


def upstreams_function(binding: ModuleType) -> Callable:
    """Returns upstream's flash_attn_func, of its own Python around its binding."""
    sys.modules["flash_attn_2_cuda"] = binding
    path = upstream() / "flash_attn/flash_attn_interface.py"
    spec = importlib.util.spec_from_file_location("upstreams_interface", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.flash_attn_func


def compare_calls() -> bool:
    """Prints the microseconds of the host for a call on 128 tokens."""
    q, k, v, _ = inputs(1, 128, 2, 64, torch.bfloat16)
    binding = upstreams_binding()
    function = upstreams_function(binding)
    options = (0.0, 64**-0.5, False, -1, -1, 0.0, False, None)
    kernel = kernelmint.kernel("flash_attn_forward.sm80.bf16-d64-ek-emn-m128-n128-w4")
    calls: dict[str, Callable] = {
        "the kernel": lambda: kernel(q, k, v),
        "the front": lambda: kernelmint.flash_attn_forward(q, k, v),
        "the function here": lambda: flash_attn_pack.flash_attn_func(q, k, v),
        "upstream's function": lambda: function(q, k, v),
        "upstream's binding": lambda: binding.fwd(q, k, v, None, None, *options),
    }
    cells = {"128 tokens": calls}.items()
    return print_times("a forward call on the host", cells, torch.device("cuda"), host=True)


def print_passes(title: str, cells: Iterable[tuple[str, Callable, Callable]]) -> bool:
    """Prints times of cells' passes, by ours and by theirs, and returns whether they agree."""
    forwards, backwards = {}, {}
    for size, theirs, ours in cells:
        runs = {"here": ours, title: theirs}
        forwards[size] = {name: lambda run=run: run()[0] for name, run in runs.items()}
        backwards[size] = {name: run()[1] for name, run in runs.items()}
    device = torch.device("cuda")
    good = print_times(f"forward, beside {title}", forwards.items(), device)
    return print_times(f"backward, beside {title}", backwards.items(), device) and good


def bench() -> bool:
    """Prints times of our kernels beside PyTorch's."""
    return print_passes("PyTorch", (
        (f"d={head_dim} causal={causal} {seqlen}", passes(*tensors, causal)[0],
         kernels(*tensors, causal))
        for head_dim, causal, seqlen in itertools.product((64, 128), (False, True), (1024, 4096))
        for tensors in [inputs(4, seqlen, 16, head_dim, torch.bfloat16)]
    ))  # fmt: skip


def main() -> None:
    """Runs steps, all of them by default; exit status 1 if something differs or fails."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tests", type=int, default=60, help="cases of each of upstream's tests")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--only", default="", help="build those of upstream's files: fwd_hdim64")
    verify = [sys.executable, "-m", "kernelmint", "verify", "flash_attn_pack"]
    steps: dict[str, Callable[[], bool]] = {
        "build": lambda: build_upstream(options.only),
        "pytorch": compare_with_pytorch,
        "upstream": compare_with_upstream,
        "calls": compare_calls,
        "compiled": compare_compiled,
        "bench": bench,
        "tests": lambda: subprocess.run(tests, check=False).returncode == 0,
        "verify": lambda: subprocess.run(verify, check=False).returncode == 0,
    }
    parser.add_argument("steps", nargs="*", default=list(steps), metavar="STEP")
    options = parser.parse_args()
    tests = [sys.executable, str(Path(__file__).parent / "upstream_tests.py")]
    tests += [f"--most={options.tests}", f"--seed={options.seed}"]
    if unknown := set(options.steps) - set(steps):
        parser.error(f"got {', '.join(sorted(unknown))}, expected some of {', '.join(steps)}")
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
