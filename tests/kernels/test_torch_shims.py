"""The shims of PyTorch's headers do on the host what PyTorch does, and nvcc takes them."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
SHIMS = ROOT / "runtime/include/shims/torch"
COMPILERS = {
    "c++": ("c++", "-O1", "-fPIC", "-Wall", "-Wextra", "-Werror"),
    "nvcc": (
        *("nvcc", "-x", "cu", "--expt-relaxed-constexpr", "-gencode=arch=compute_80,code=sm_80"),
        *("-Werror=all-warnings", "-Xcompiler=-fPIC"),
    ),
}


@pytest.fixture(scope="module", params=COMPILERS)
def library(request, tmp_path_factory) -> ctypes.CDLL:
    if shutil.which(request.param) is None:
        pytest.skip(f"no {request.param} on PATH")
    built = tmp_path_factory.mktemp("shims") / "probe.so"
    probe = Path(__file__).with_name("torch_shims_probe.cpp")
    options = ("-std=c++20", "-shared", f"-I{SHIMS}", probe, "-o", built)
    done = subprocess.run(
        [*COMPILERS[request.param], *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(built))


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_numbers_are_pytorchs(library, name) -> None:
    """Every value, as many beside them, and what lies in between, bit by bit."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[name]
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(dtype).float()
    x = torch.cat([every, torch.randint(-(1 << 31), 1 << 31, (1 << 16,)).int().view(torch.float32)])
    x = torch.cat([x, torch.tensor([65504.0, 65519.99, 65520.0, 2.0**-25, 1.5 * 2.0**-24, 3.4e38])])
    y = x[torch.randperm(len(x))]
    out = torch.zeros(len(x), 10, dtype=torch.int16)
    wide, limits = torch.zeros(len(x)), torch.zeros(6)
    getattr(library, f"probe_{name}")(
        *(ctypes.c_void_p(t.data_ptr()) for t in (x, y)), ctypes.c_int64(len(x)),
        *(ctypes.c_void_p(t.data_ptr()) for t in (out, wide, limits)),
    )  # fmt: skip
    a, b = x.to(dtype), y.to(dtype)
    expected = [
        a, a + b, a - b, a * b, a / b, -a, a + 1, 2 * a, (a + b) / 3, torch.where(a < b, a, b)
    ]  # fmt: skip
    for column, want in enumerate(expected):
        got = out[:, column].contiguous().view(dtype)
        same = (got.view(torch.int16) == want.view(torch.int16)) | (got.isnan() & want.isnan())
        assert same.all(), (column, x[~same][:5], got[~same][:5], want[~same][:5])
    assert torch.equal(wide.nan_to_num(1e9), a.float().nan_to_num(1e9))
    info = torch.finfo(dtype)
    least = info.smallest_normal * info.eps
    assert limits.tolist() == [info.tiny, info.max, info.min, info.eps, torch.inf, least]


@pytest.mark.parametrize(
    ("sizes", "strides", "excluded", "collapsed", "place"),
    [
        ([4, 5, 6], [30, 6, 1], -1, ([120], [1]), -1),
        ([4, 5, 6], [30, 6, 1], 2, ([20, 6], [6, 1]), 1),
        ([4, 5, 6], [30, 6, 1], 0, ([4, 30], [30, 1]), 0),
        ([1, 5, 1], [9, 2, 7], -1, ([5], [2]), -1),
        ([1, 5], [9, 2], 1, ([5], [2]), 0),
        ([3, 1], [9, 2], 1, ([3, 1], [9, 2]), 1),
        ([4, 5, 6], [0, 1, 0], -1, ([4, 5, 6], [0, 1, 0]), -1),  # as of expand
        ([4, 5, 6], [0, 0, 1], -1, ([20, 6], [0, 1]), -1),
        ([1, 1], [5, 3], -1, ([1], [1]), 0),
    ],
)
def test_dimensions_that_lie_as_one_are_joined(
    library, sizes, strides, excluded, collapsed, place
) -> None:
    dims = ctypes.c_int(len(sizes))
    held = [(ctypes.c_int * len(sizes))(*numbers) for numbers in (sizes, strides)]
    assert library.probe_collapse(ctypes.byref(dims), *held, excluded) == place
    assert tuple(list(numbers[: dims.value]) for numbers in held) == collapsed


def text(function, *arguments) -> str:
    buffer = ctypes.create_string_buffer(500)
    function(*arguments, buffer)
    return buffer.value.decode()


def test_a_check_that_fails_throws_its_words(library) -> None:
    assert text(library.probe_check, 1) == ""
    assert text(library.probe_check, 0) == "expected rows > 0. "
    assert text(library.probe_check, 4) == "expected rows < 3. got 4 rows"


def test_an_error_of_cudas_throws_its_words_and_its_place(library) -> None:
    if not hasattr(library, "probe_cuda"):
        pytest.skip("not compiled by nvcc")
    said = text(library.probe_cuda)
    assert said.startswith("CUDA error: ")
    assert "shims" in said or "torch_shims_probe.cpp:" in said


def test_philox_begins_at_values_or_at_what_a_graph_fills_in(library) -> None:
    if not hasattr(library, "probe_philox"):
        pytest.skip("not compiled by nvcc")
    found = torch.zeros(4, dtype=torch.int64)
    library.probe_philox(ctypes.c_void_p(found.data_ptr()))
    assert found.tolist() == [7, 9, 3, 9]


KERNELS = """
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
template <class T>
__global__ void scale(const T* x, const float* weight, T* y) {
  float sum = 0;
  for (int i = 0; i < 4; ++i) sum += weight[i] * float(x[threadIdx.x + i]);
  T zeros[2] = {0};
  y[threadIdx.x] = T(sum) * x[0] + zeros[1];
}
template __global__ void scale(const c10::BFloat16*, const float*, c10::BFloat16*);
template __global__ void scale(const c10::Half*, const float*, c10::Half*);
"""


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
def test_kernels_are_the_machine_code_that_pytorchs_headers_give(tmp_path) -> None:
    source, cubins = tmp_path / "kernels.cu", []
    source.write_text(KERNELS)
    for headers in (SHIMS, Path(torch.__file__).parent / "include"):
        options = ("-std=c++20", "--expt-relaxed-constexpr", "-arch=sm_80", f"-I{headers}")
        made = tmp_path / "kernels.cubin"
        subprocess.run(["nvcc", "-cubin", *options, source, "-o", made], check=True)
        cubins.append(made.read_bytes())
    assert cubins[0] == cubins[1]
