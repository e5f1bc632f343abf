"""From sources to a result, cold and warm: `python -m tools.bench_build [--attention]`.

One kernel, z = alpha * x + y in f32, built on demand by Kernelmint (what `kernelmint new` writes),
by torch.utils.cpp_extension.load_inline, by apache-tvm-ffi's load_inline and by CuPy's RawModule,
the last two where they are installed; on the CPU, and on a GPU where there is one.

Each figure is a process of its own, the best of the runs: the seconds from after its imports to a
result that was checked. Cold has an empty cache, warm what the cold one left.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import click
import torch

from codegen import scaffold

FAMILY = "bench_add"
_HEAD = """
import sys, time
import torch
{imports}
begin = time.perf_counter()
"""
_TAIL = """
x, y = torch.randn(2, 64, 1000, device={device!r})
z = torch.full_like(x, float("nan"))
call(x, y, z)
assert torch.allclose(z, 0.5 * x + y), "wrong"
print(time.perf_counter() - begin)
"""
_KERNELMINT = """
runtime.load(sys.argv[1])
kernel = runtime.kernel({key!r})
call = lambda x, y, z: kernel(x, y, alpha=0.5, out=z)
"""
_ATTENTION = """
kernel = runtime.kernel({key!r}, build=True)
q, k, v = torch.randn(3, 1, 300, 2, {d}, device={device!r}).to({dtype})
o = kernel(q, k, v, out=torch.full_like(q, float("nan")))
want = torch.nn.functional.scaled_dot_product_attention(
    *(t.transpose(1, 2).double() for t in (q, k, v))).transpose(1, 2)
assert (o - want).abs().max() < {tolerance}, "wrong"
print(time.perf_counter() - begin)
"""
_TORCH_CPU = '''
module = load_inline(name="bench_add", functions=["add"], extra_cflags=["-O3"], cpp_sources="""
void add(torch::Tensor x, torch::Tensor y, torch::Tensor z) {
  const float *a = x.data_ptr<float>(), *b = y.data_ptr<float>();
  float* c = z.data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) c[i] = 0.5f * a[i] + b[i];
}
""")
call = module.add
'''
_KERNEL = """
__global__ void add_kernel(const float* a, const float* b, float* c, long n) {
  const long i = long(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) c[i] = 0.5f * a[i] + b[i];
}
"""
_TORCH_CUDA = f'''
module = load_inline(name="bench_add", functions=["add"],
    cpp_sources="void add(torch::Tensor x, torch::Tensor y, torch::Tensor z);", cuda_sources="""
#include <c10/cuda/CUDAStream.h>
{_KERNEL}
void add(torch::Tensor x, torch::Tensor y, torch::Tensor z) {{
  const long n = x.numel();
  add_kernel<<<(n + 255) / 256, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
      x.data_ptr<float>(), y.data_ptr<float>(), z.data_ptr<float>(), n);
}}
""")
call = module.add
'''
_TVM_CPU = '''
module = tvm_ffi.cpp.load_inline(name="bench_add", functions=["add"], extra_cflags=["-O3"],
    cpp_sources="""
void add(tvm::ffi::TensorView x, tvm::ffi::TensorView y, tvm::ffi::TensorView z) {
  const float *a = static_cast<const float*>(x.data_ptr());
  const float *b = static_cast<const float*>(y.data_ptr());
  float* c = static_cast<float*>(z.data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) c[i] = 0.5f * a[i] + b[i];
}
""")
call = module.add
'''
_TVM_CUDA = f'''
module = tvm_ffi.cpp.load_inline(name="bench_add", functions=["add"], cuda_sources="""
{_KERNEL}
void add(tvm::ffi::TensorView x, tvm::ffi::TensorView y, tvm::ffi::TensorView z) {{
  const long n = x.numel();
  add_kernel<<<(n + 255) / 256, 256>>>(static_cast<const float*>(x.data_ptr()),
      static_cast<const float*>(y.data_ptr()), static_cast<float*>(z.data_ptr()), n);
}}
""")
call = module.add
'''
_CUPY = f'''
module = cupy.RawModule(code=r"""extern "C" {_KERNEL.strip()}""")
kernel = module.get_function("add_kernel")
def call(x, y, z):
    n = x.numel()
    with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
        kernel(((n + 255) // 256,), (256,), (x.data_ptr(), y.data_ptr(), z.data_ptr(), n))
'''


@dataclass(frozen=True)
class Contender:
    """A way from sources to a result."""

    name: str
    needs: str  # a module, without which it does not take part
    script: str


def _script(imports: str, body: str, device: str) -> str:
    return _HEAD.format(imports=imports) + body + _TAIL.format(device=device)


def _kernelmint(key: str, device: str) -> Contender:
    body = _KERNELMINT.format(key=f"{FAMILY}.{key}")
    return Contender(f"Kernelmint, {key}", "runtime", _script("import runtime", body, device))


def _attention(key: str, device: str, d: int, dtype: str, tolerance: float) -> Contender:
    body = _ATTENTION.format(key=key, device=device, d=d, dtype=dtype, tolerance=tolerance)
    return Contender(f"Kernelmint, {key}", "runtime", _HEAD.format(imports="import runtime") + body)


def contenders(device: str, attention: bool) -> list[Contender]:
    """Those for a device, "cpu" or "cuda"; with Kernelmint's attention kernels or without."""
    load = "from torch.utils.cpp_extension import load_inline"
    ours, torchs, tvms = (
        ("cpu.f32-n4096", _TORCH_CPU, _TVM_CPU)
        if device == "cpu"
        else ("sm80.f32-t128-n1024", _TORCH_CUDA, _TVM_CUDA)
    )
    found = [
        _kernelmint(ours, device),
        Contender("torch load_inline", "torch", _script(load, torchs, device)),
        Contender("tvm-ffi load_inline", "tvm_ffi", _script("import tvm_ffi.cpp", tvms, device)),
    ]
    if device == "cuda":
        found.append(Contender("CuPy RawModule", "cupy", _script("import cupy", _CUPY, device)))
    if attention:
        key = "flash_forward.cpu.f32-d64-r32-c64"
        arguments = (key, device, 64, "torch.float32", 1e-5)
        if device == "cuda":
            key = "flash_forward.sm80.bf16-d128-r64-c32-w4-async-eager-swz-q0-k0-v0-opt"
            arguments = (key, device, 128, "torch.bfloat16", 3e-2)
        found.append(_attention(*arguments))
    return found


def measure(contender: Contender, specs: Path, runs: int) -> tuple[float, float]:
    """Seconds from the imports to a result, cold and warm: the least of the runs."""
    cold: list[float] = []
    warm: list[float] = []
    for _ in range(runs):
        cache = Path(tempfile.mkdtemp(prefix="bench-build-"))
        environment = {
            **os.environ,
            "KERNELMINT_CACHE_DIR": str(cache / "kernelmint"),
            "TORCH_EXTENSIONS_DIR": str(cache / "torch"),
            "TVM_FFI_CACHE_DIR": str(cache / "tvm"),
            "CUPY_CACHE_DIR": str(cache / "cupy"),
            "CCACHE_DISABLE": "1",
        }
        for times in (cold, warm):
            done = subprocess.run(
                [sys.executable, "-c", contender.script, str(specs / FAMILY)],
                env=environment, capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode:
                raise click.ClickException(f"{contender.name}:\n{done.stderr[-3000:]}")
            times.append(float(done.stdout.split()[-1]))
        shutil.rmtree(cache)
    return min(cold), min(warm)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--runs", default=3, show_default=True, help="Of each; the best counts.")
@click.option("--attention", is_flag=True, help="Kernelmint's attention kernels too.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures.")
def main(runs: int, attention: bool, json_file: Path | None) -> None:
    """Prints the table."""
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        specs = Path(folder) / "kernel_specs"
        scaffold.create(FAMILY, specs)
        cores = len(os.sched_getaffinity(0))
        click.echo(f"PyTorch {torch.__version__}, {cores} processors; seconds to a result")
        click.echo(f"  {'':<84}{'cold':>7}{'warm':>8}")
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            for contender in contenders(device, attention):
                name = f"{device}: {contender.name}"
                if importlib.util.find_spec(contender.needs) is None:
                    click.echo(f"  {name:<84}  (no {contender.needs} here)")
                    continue
                cold, warm = measure(contender, specs, runs)
                figures.append({"name": name, "cold": cold, "warm": warm})
                click.echo(f"  {name:<84}{cold:>7.2f}{warm:>8.3f}")
    if json_file is not None:
        json_file.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
