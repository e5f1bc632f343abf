"""Seconds from an edit: the moved examples' kernels beside upstream's files.

    python seconds.py [flash_attn causal_conv1d torch_scatter]

From a comment that is added to a kernel's header to its first right call, in a process of its own;
and upstream's file that holds the kernel, compiled with the flags of its setup.py, and linked
alone. All of it at once, a process each. Wall time, and in brackets processor time. For the GPU
that is here, or without one for `--architecture`, and then nothing is called.

It needs nvcc, a C++ compiler and PyTorch's headers, and no network if KERNELMINT_SOURCES names a
folder that `kernelmint sources --to FOLDER` filled. The examples' packs may not be installed, since
kernels of their folders are built.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml
from torch.utils import cpp_extension

from codegen.sources import archives

HERE = Path(__file__).resolve().parent
HALF = [f"-U__CUDA_NO_{what}__" for what in (
    "HALF_OPERATORS", "HALF_CONVERSIONS", "HALF2_OPERATORS", "BFLOAT16_OPERATORS",
    "BFLOAT16_CONVERSIONS", "BFLOAT162_OPERATORS", "BFLOAT162_CONVERSIONS",
)]  # fmt: skip
_DEVICE = "cuda" if torch.version.cuda else "cpu"  # whose headers and libraries PyTorch has
# Flags that PyTorch's build adds if no standard is named.
_STANDARD = re.findall(r"'(-std=c\+\+\d+)'", Path(cpp_extension.__file__).read_text())[-1]
EXTENDED = ["--expt-relaxed-constexpr", "--expt-extended-lambda", "--use_fast_math"]


@dataclass(frozen=True)
class Example:
    """An example, a kernel of it, the header that is edited, and upstream's files.

    Attributes:
        key: the kernel.
        header: what is edited, in the example's `kernel_specs`.
        file: upstream's that instantiates the kernel.
        include: upstream's folders of headers.
        flags: of nvcc, of its setup.py.
    """

    key: str
    header: str
    file: str
    include: tuple[str, ...]
    flags: tuple[str, ...]


EXAMPLES = {
    "flash_attn": Example(
        "flash_attn_forward.sm80.bf16-d64-causal-ek-emn-m128-n128-w4",
        "flash_attn/flash_attn_forward/sm80.cuh",
        "csrc/flash_attn/src/flash_fwd_hdim64_bf16_causal_sm80.cu",
        ("csrc/flash_attn", "csrc/flash_attn/src", "csrc/cutlass/include"),
        ("-O3", "-std=c++17", *HALF[:3], HALF[4], *EXTENDED),
    ),
    "causal_conv1d": Example(
        "causal_conv1d_fwd.sm80.bf16-f32-w4-vec",
        "causal_conv1d/causal_conv1d_fwd/sm80.cuh",
        "csrc/causal_conv1d_fwd.cu",
        ("csrc",),
        ("-O3", *HALF[:2], *HALF[3:], *EXTENDED, "--ptxas-options=-v", "-lineinfo"),
    ),
    "torch_scatter": Example(
        "torch_scatter_segment_csr.sm80.f32-sum",
        "torch_scatter/torch_scatter_segment_csr/sm80.cuh",
        "csrc/cuda/segment_csr_cuda.cu",
        ("csrc",),
        ("-O3", "--expt-relaxed-constexpr"),
    ),
}

# Script of the process that builds and calls a kernel; its own time is printed, from the first
# line on, and that of the build alone.
CALL = """
import time
begin = time.perf_counter()
import sys
import torch
import kernelmint
specs, key, architecture = sys.argv[1:]
load = time.perf_counter()
has_gpu = torch.cuda.is_available()
kernelmint.build(specs, keys=[key], architectures=None if has_gpu else [architecture])
built = time.perf_counter()
what = "not called: no GPU"
if has_gpu:
    from kernelmint.tools.problem import cases_of, of_case
    kernel = kernelmint.kernel(key)
    problem = of_case(kernel.info, cases_of(kernel.info)[0], torch.device("cuda"))
    wrong = [d for d in problem.check(kernel) if not d.passed]
    torch.cuda.synchronize()
    what = f"WRONG: {wrong[0]}" if wrong else "right"
print(f"of it {load - begin:.1f} to import, {built - load:.1f} to build, {what}")
sys.exit(what.startswith("WRONG"))
"""


def upstream(name: str) -> Path:
    """Returns the archive that an example's specs pin, unpacked."""
    spec = yaml.safe_load((HERE / name / "kernel_specs" / name / "sm80.yaml").read_text())
    pin = spec["build"]["archives"]["upstream"]
    return archives.folder(f"pypi:{pin['pypi']}=={pin['version']}", pin["sha256"])


@dataclass(frozen=True)
class Run:
    """The cost of a command, and its output if it failed."""

    wall: float
    processor: float
    output: str
    failed: bool

    def __str__(self) -> str:
        shown = f"{self.wall:.1f} s ({self.processor:.1f})"
        return f"{shown} FAILED: {self.output[-1500:]}" if self.failed else shown


def run(command: Sequence[str], *, timeout: float, **environment: str) -> Run:
    """Runs a command; its times include those of the processes that it starts."""
    with tempfile.TemporaryFile("w+") as output:
        begin = time.perf_counter()
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        late = threading.Timer(timeout, os.killpg, (process.pid, signal.SIGKILL))
        late.start()
        _, status, used = os.wait4(process.pid, 0)
        late.cancel()
        wall = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read().strip()
    if wall >= timeout:
        text = f"not ended after {timeout:.0f} s"
    return Run(wall, used.ru_utime + used.ru_stime, text, status != 0)


def compile_command(example: Example, folder: Path, to: Path, architecture: str) -> list[str]:
    """Returns the command that compiles upstream's file."""
    include = [*(str(folder / path) for path in example.include)]
    include += [*cpp_extension.include_paths(_DEVICE), sysconfig.get_path("include")]
    common = [*(f"-I{path}" for path in include), "-DTORCH_EXTENSION_NAME=upstream"]
    common += [
        "-DTORCH_API_INCLUDE_EXTENSION_H",
        "-w",
        "-c",
        str(folder / example.file),
        "-o",
        str(to),
    ]
    standard = [] if any(f.startswith("-std") for f in example.flags) else [_STANDARD]
    default = [f for f in cpp_extension.COMMON_NVCC_FLAGS if f not in example.flags]
    flags = [*default, *example.flags, *standard]
    flags += [f"-gencode=arch=compute_{architecture},code=sm_{architecture}"]
    return [os.environ.get("CUDACXX", "nvcc"), *flags, "-Xcompiler=-fPIC", *common]


def link_command(objects: Sequence[Path], to: Path) -> list[str]:
    """Returns the command that links an extension."""
    libraries = [f"-L{path}" for path in cpp_extension.library_paths(_DEVICE)]
    names = ["c10", "torch_cpu", "torch", "torch_python"]
    if torch.version.cuda:
        names += ["c10_cuda", "torch_cuda", "cudart"]
    libraries += [f"-l{name}" for name in names]
    return ["c++", "-shared", *map(str, objects), *libraries, "-o", str(to)]


def edited_here(name: str, architecture: str, timeout: float) -> str:
    """Measures from an edited header to a right call; the process before filled the caches."""
    example = EXAMPLES[name]
    with tempfile.TemporaryDirectory() as work:
        specs = Path(work, "kernel_specs")
        shutil.copytree(HERE / name / "kernel_specs", specs)
        command = [sys.executable, "-c", CALL, str(specs), example.key, architecture]
        cache = {"KERNELMINT_CACHE_DIR": f"{work}/cache"}
        for number in range(2):
            with (specs / example.header).open("a") as file:
                file.write(f"// edit {number}\n")
            took = run(command, timeout=timeout, **cache)
            if took.failed:
                break
        own = "" if took.failed else took.output.splitlines()[-1]
        return f"{name}, here, {example.key}: {took}, {own}"


def edited_upstream(name: str, architecture: str, timeout: float) -> str:
    """Measures upstream's file, and its link."""
    example = EXAMPLES[name]
    folder = upstream(name)
    with tempfile.TemporaryDirectory() as work:
        to, library = Path(work, "file.o"), Path(work, "library.so")
        compiling = compile_command(example, folder, to, architecture)
        took = run(compiling, timeout=timeout)
        linked = "" if took.failed else f"; its link {run(link_command([to], library), timeout=60)}"
    return f"{name}, upstream's {example.file}: {took}{linked}"


def edited(names: Sequence[str], architecture: str, timeout: float) -> list[str]:
    """Measures both, for all examples, at once."""
    ways = [way for name in names for way in ((edited_here, name), (edited_upstream, name))]
    with ThreadPoolExecutor(len(ways)) as pool:
        return list(pool.map(lambda way: way[0](way[1], architecture, timeout), ways))


def main() -> None:
    """Runs the command; exit status 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="EXAMPLE")
    parser.add_argument("--architecture", default="", help="such as 90")
    parser.add_argument("--timeout", type=float, default=600, help="seconds of a process")
    options = parser.parse_args()
    names = options.names or list(EXAMPLES)
    if unknown := set(names) - set(EXAMPLES):
        parser.error(f"got {', '.join(sorted(unknown))}, expected some of {', '.join(EXAMPLES)}")
    architecture = options.architecture
    if not architecture:
        if not torch.cuda.is_available():
            parser.error("no GPU is here: say --architecture, such as 90")
        architecture = "{}{}".format(*torch.cuda.get_device_capability())
    for name in names:
        upstream(name)  # unpacked before anything is measured
    lines = edited(names, architecture, options.timeout)
    print("\n".join(lines))
    sys.exit(any("FAILED" in line or "WRONG" in line for line in lines))


if __name__ == "__main__":
    main()
