"""From sources to a result, cold and warm: `python -m tools.bench_build [--cores 2]`.

One kernel, z = alpha * x + y in f32, built on demand by Kernelmint (`kernelmint new` writes it),
by apache-tvm-ffi's load_inline, by CuPy's RawModule (on a GPU) and by PyTorch's load_inline, each
if its package is installed; and an attention kernel of Kernelmint's. On a GPU if there is
one, then on the CPU.

Each figure is the least of several runs, each in a new process: the seconds from sources to a
result, which is then checked. Imports, the CUDA context and the inputs come before. Cold has empty
caches, warm the caches of the cold run. A row is printed as it comes, and a slow contender is not
run often.
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

from .output_file import OutputFile, write

FAMILY = "bench_add"
_HEAD = """
import sys, time
import torch
{imports}
device = {device!r}
{inputs}
wait = torch.cuda.synchronize if device == "cuda" else lambda: None
wait()
begin = time.perf_counter()
"""
_TAIL = """
call(*inputs, out)
wait()
seconds = time.perf_counter() - begin
torch.testing.assert_close(out, want, **within)
print(seconds)
"""
_ADD = """
inputs = torch.randn(2, 64, 1000, device=device)
want = 0.5 * inputs[0] + inputs[1]
out, within = torch.full_like(want, float("nan")), {}
"""
_KERNELMINT = """
runtime.load(sys.argv[1])
kernel = runtime.kernel({key!r})
call = lambda x, y, z: kernel(x, y, alpha=0.5, out=z)
"""
_ATTENTION = """
inputs = torch.randn(3, 1, 300, 2, {d}, device=device).to({dtype})
want = torch.nn.functional.scaled_dot_product_attention(
    *(t.transpose(1, 2).double() for t in inputs)).transpose(1, 2).to({dtype})
out, within = torch.full_like(inputs[0], float("nan")), dict(atol={tolerance}, rtol=0)
"""
_KERNELMINT_ATTENTION = """
kernel = runtime.kernel({key!r}, build=True)
call = lambda q, k, v, o: kernel(q, k, v, out=o)
"""
_KERNEL = """
__global__ void add_kernel(const float* a, const float* b, float* c, long n) {
  const long i = long(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) c[i] = 0.5f * a[i] + b[i];
}
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


def _add(name: str, needs: str, imports: str, body: str, device: str) -> Contender:
    head = _HEAD.format(imports=imports, device=device, inputs=_ADD)
    return Contender(f"{device}: {name}", needs, head + body + _TAIL)


def _kernelmint(key: str, device: str) -> Contender:
    body = _KERNELMINT.format(key=f"{FAMILY}.{key}")
    return _add(f"Kernelmint, {key}", "runtime", "import runtime", body, device)


def _attention(key: str, device: str, d: int, dtype: str, tolerance: float) -> Contender:
    inputs = _ATTENTION.format(d=d, dtype=dtype, tolerance=tolerance)
    head = _HEAD.format(imports="import runtime", device=device, inputs=inputs)
    script = head + _KERNELMINT_ATTENTION.format(key=key) + _TAIL
    return Contender(f"{device}: Kernelmint, {key}", "runtime", script)


def contenders(device: str) -> list[Contender]:
    """Returns the contenders for a device, "cpu" or "cuda"; the slowest last."""
    load = "from torch.utils.cpp_extension import load_inline"
    if device == "cpu":
        return [
            _kernelmint("cpu.f32-n4096", device),
            _attention("flash_forward.cpu.f32-d64-r32-c64", device, 64, "torch.float32", 1e-5),
            _add("tvm-ffi load_inline", "tvm_ffi", "import tvm_ffi.cpp", _TVM_CPU, device),
            _add("torch load_inline", "torch", load, _TORCH_CPU, device),
        ]
    attention = "flash_forward.sm80.bf16-d128-r64-c32-w4-async-eager-swz-q0-k0-v0-opt"
    return [
        _kernelmint("sm80.f32-t128-n1024", device),
        _attention(attention, device, 128, "torch.bfloat16", 3e-2),
        _add("CuPy RawModule", "cupy", "import cupy", _CUPY, device),
        _add("tvm-ffi load_inline", "tvm_ffi", "import tvm_ffi.cpp", _TVM_CUDA, device),
        _add("torch load_inline", "torch", load, _TORCH_CUDA, device),
    ]


def _seconds(contender: Contender, specs: Path, cache: Path) -> float:
    """Returns the seconds that one process measured, with its caches in a folder."""
    environment = {
        **os.environ,
        "KERNELMINT_CACHE_DIR": str(cache / "kernelmint"),
        "TORCH_EXTENSIONS_DIR": str(cache / "torch"),
        "TVM_FFI_CACHE_DIR": str(cache / "tvm"),
        "CUPY_CACHE_DIR": str(cache / "cupy"),
        "CUDA_CACHE_PATH": str(cache / "cuda"),  # the driver's
        "CCACHE_DISABLE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", contender.script, str(specs / FAMILY)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise click.ClickException(done.stderr[-3000:])
    return float(done.stdout.split()[-1])


def _cold(contender: Contender, specs: Path, folder: Path, runs: int, most: float) -> list[float]:
    """Returns seconds with empty caches, which stay in the folder: no further run after `most`."""
    seconds: list[float] = []
    while len(seconds) < runs and sum(seconds) < most:
        shutil.rmtree(folder, ignore_errors=True)
        seconds.append(_seconds(contender, specs, folder))
    return seconds


def _pin(ctx: click.Context, option: click.Parameter, cores: int | None) -> int | None:
    """Keeps this process and its children on so many processors."""
    allowed = sorted(os.sched_getaffinity(0))
    if cores is not None:
        if cores > len(allowed):
            raise click.BadParameter(f"got {cores}, there are {len(allowed)}", ctx, option)
        os.sched_setaffinity(0, allowed[:cores])
        os.environ["MAX_JOBS"] = str(cores)  # PyTorch's number of jobs for ninja
    return cores


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--runs",
    default=3,
    show_default=True,
    help="Runs of each contender, at most; the least counts.",
)
@click.option(
    "--seconds", "most", default=15.0, show_default=True,
    help="No further cold run of a contender whose runs took so long together.",
)  # fmt: skip
@click.option(
    "--cores", type=click.IntRange(min=1), callback=_pin,
    help="Processors to use, also by compilers. Default: all.",
)  # fmt: skip
@click.option(
    "--device", "devices", type=click.Choice(["cuda", "cpu"]), multiple=True,
    help="May be repeated. Default: the devices here.",
)  # fmt: skip
@click.option(
    "--only", default="", metavar="TEXT", help="Only contenders whose name contains this."
)
@click.option("--json", "json_file", type=OutputFile(), help="Write the figures.")
def main(
    runs: int,
    most: float,
    cores: int | None,
    devices: tuple[str, ...],
    only: str,
    json_file: Path | None,
) -> None:
    """Prints the table, each figure as it comes; exits with 1 if a contender fails."""
    devices = devices or (("cuda", "cpu") if torch.cuda.is_available() else ("cpu",))
    listed = [c for device in devices for c in contenders(device) if only in c.name]
    if not listed:
        raise click.UsageError(f"no contender's name contains {only!r}")
    used = sorted(os.sched_getaffinity(0))
    figures = []
    failures = []
    with tempfile.TemporaryDirectory(prefix="bench-build-") as folder:
        specs, caches = Path(folder) / "kernel_specs", Path(folder) / "caches"
        scaffold.create(FAMILY, specs)
        numbers = "" if cores is None else f" (numbers {', '.join(map(str, used))})"
        click.echo(f"PyTorch {torch.__version__}, {len(used)} processors{numbers}")
        heading = "seconds from sources to a result"
        click.echo(f"  {heading:<92}{'cold':>7}{'runs':>6}{'warm':>8}{'runs':>6}")
        for contender in listed:
            click.echo(f"  {contender.name:<92}", nl=False)
            if importlib.util.find_spec(contender.needs) is None:
                click.echo(f"  (no {contender.needs} here)")
                continue
            try:
                cold = _cold(contender, specs, caches, runs, most)
                click.echo(f"{min(cold):>7.2f}{len(cold):>6}", nl=False)
                warm = [_seconds(contender, specs, caches) for _ in range(runs)]
            except click.ClickException as error:
                click.echo("  failed")
                failures.append(f"{contender.name}:\n{error.message}")
                continue
            click.echo(f"{min(warm):>8.3f}{len(warm):>6}")
            figures.append({"name": contender.name, "cold": cold, "warm": warm})
            if json_file is not None:
                write(json_file, json.dumps(figures, indent=1) + "\n")
    if failures:
        raise click.ClickException("\n".join(failures))


if __name__ == "__main__":
    main()
