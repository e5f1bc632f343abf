"""launch_cuda: the page's example compiles, and what CUDA would refuse is said in words."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from codegen import scaffold

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")

# What a generated shard has around a header: Args, a configuration, and the launch's instance.
BEFORE = """
#include <cstdint>
#include "dtypes.h"
#include "tensor_view.h"
namespace kernelmint::row_sums {
struct Args { TensorView<2> x; TensorView<1> y; std::int64_t M, N; };
}
"""
AFTER = """
namespace kernelmint::row_sums {
template <class Config>
__global__ void partial_sums(const typename Config::Args args, float* partial, std::int64_t) {
  partial[blockIdx.y * gridDim.x + blockIdx.x] = *args.x.template at<const float>(blockIdx.y);
}
template <class Config>
__global__ void total_sums(const typename Config::Args args, const float* partial, std::int64_t) {
  *args.y.template at<float>(blockIdx.x) = partial[blockIdx.x];
}
struct t128 {
  using Args = kernelmint::row_sums::Args;
  static constexpr int threads = 128, tile = 32768;
  static constexpr std::int64_t most = 1 << 24;
};
}
template kernelmint::LaunchResult
kernelmint::launch<kernelmint::row_sums::t128, kernelmint::isa::cuda>(
    const void*, const kernelmint::LaunchContext&);
"""


def nvcc(folder: Path, *options: str) -> Path:
    result = folder / "result"
    done = subprocess.run(
        [
            *("nvcc", "-std=c++20", "--expt-relaxed-constexpr", "-Werror=all-warnings"),
            *(f"-I{ROOT / 'runtime/include'}", *options, "-o", result),
        ],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return result


@pytest.mark.parametrize("architecture", ["80", "90a"])
def test_the_pages_example_compiles(tmp_path: Path, architecture: str) -> None:
    page = (ROOT / "docs/launches.md").read_text()
    (example,) = re.findall(r"```cpp\n(.*?)```", page, re.DOTALL)
    (tmp_path / "example.cu").write_text(BEFORE + example + AFTER)
    gencode = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
    # CUTLASS's headers leave that warning an error for whoever includes them.
    strict = "-Xcompiler=-fPIC,-Werror=missing-field-initializers"
    library = nvcc(tmp_path, gencode, "-shared", strict, "example.cu")
    needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True)
    assert "libc.so" in needed.stdout
    assert "libcuda" not in needed.stdout


# nvcc reads what a kernel includes once for the host and once or twice for each architecture.
SLOW_HEADERS = {"algorithm", "atomic", "chrono", "functional", "iostream", "mutex", "string"}


@pytest.mark.parametrize("place", ["scaffold", "generated"])
def test_a_small_kernel_includes_no_header_that_takes_nvcc_long(tmp_path: Path, place: str) -> None:
    if place == "scaffold":
        scaffold.create("row_sums", tmp_path / "kernel_specs")
        header = tmp_path / "kernel_specs/row_sums/sm80.cuh"
        source = f'#include "arithmetic.h"\n#include "cuda_launch.cuh"\n#include "{header}"\n'
    else:
        source = '#include "flash_forward/args.h"\n#include "flash_forward/sm80_launch.cuh"\n'
    (tmp_path / "kernel.cu").write_text(source)
    includes = [f"-I{ROOT / folder}" for folder in ("generated", "kernel_specs")]
    listed = nvcc(tmp_path, "-arch=sm_80", "-M", *includes, "kernel.cu").read_text().split()
    assert {"cuda_fp16.h", "mutex.h"} <= {Path(name).name for name in listed}
    assert not {path for path in map(Path, listed) if path.name in SLOW_HEADERS}


PROGRAM = r"""
#include <cstdio>
#include "cuda_launch.cuh"
using namespace kernelmint;
void print(const CudaLaunch& launch) {
  const char* reason = why_invalid(launch, 100'000);
  std::puts(reason != nullptr ? reason : "fine");
}
int main() {
  print({.grid = {1}, .block = {1}});
  print({.grid = {INT32_MAX, 65535, 65535}, .block = {8, 2, 64}, .shared_memory = 100'000});
  print({.grid = {16, 3, 2}, .block = {1024}, .cluster = {4, 1, 2}});
  print({.grid = {0, 4}, .block = {32}});
  print({.grid = {-1, 4}, .block = {32}});
  print({.grid = {1, 65536}, .block = {32}});
  print({.grid = {std::int64_t{1} << 31}, .block = {32}});
  print({.grid = {1}, .block = {32, 33}});
  print({.grid = {1}, .block = {1, 1, 65}});
  print({.grid = {1}, .block = {std::int64_t{1} << 62, 4}});
  print({.grid = {1}, .block = {32, 0}});
  print({.grid = {16}, .block = {32}, .cluster = {16}});
  print({.grid = {16}, .block = {32}, .cluster = {4, 3}});
  print({.grid = {15}, .block = {32}, .cluster = {2}});
  print({.grid = {1}, .block = {32}, .shared_memory = 100'001});
  print({.grid = {1}, .block = {32}, .shared_memory = -1});
}
"""
LIMITS = "expected at most 2^31-1 x 65535 x 65535, CUDA's limits: split the batch"
BLOCK = "threads, expected 1 to 1024 in all, at most 64 of them along z"
CLUSTER = "thread blocks, expected 1 to 8 in all"
MEMORY = "bytes of shared memory, expected at most the 100000 that a block may have on this device"
EXPECTED = [
    "fine",
    "fine",
    "fine",
    "the launch grid is empty, since an extent is 0, but there are outputs to write",
    f"got a launch grid of -1 x 4 x 1, {LIMITS}",
    f"got a launch grid of 1 x 65536 x 1, {LIMITS}",
    f"got a launch grid of 2147483648 x 1 x 1, {LIMITS}",
    f"got a block of 32 x 33 x 1 {BLOCK}",
    f"got a block of 1 x 1 x 65 {BLOCK}",
    f"got a block of 4611686018427387904 x 4 x 1 {BLOCK}",
    f"got a block of 32 x 0 x 1 {BLOCK}",
    f"got a cluster of 16 x 1 x 1 {CLUSTER}",
    f"got a cluster of 4 x 3 x 1 {CLUSTER}",
    "got a launch grid of 15 x 1 x 1, expected multiples of the cluster",
    f"got 100001 {MEMORY}",
    f"got -1 {MEMORY}",
]


def test_what_cuda_would_refuse_is_said_in_words(tmp_path: Path) -> None:
    (tmp_path / "program.cu").write_text(PROGRAM)
    program = nvcc(tmp_path, "-arch=sm_80", "program.cu")
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == EXPECTED


# A device of 10 multiprocessors, each of which has room for 2048 threads and 64 KiB.
DEVICE = r"""
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>

static int opted_in = 48 << 10, is_cooperative = 1;
extern "C" {
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error of CUDA"; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  return *value = is_cooperative, cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int bytes) {
  return opted_in = bytes, cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  return attributes->binaryVersion = 90, cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*,
                                           const cudaLaunchConfig_t* config) {
  const auto size = config->attrs[0].val.clusterDim;
  return *clusters = 16 / static_cast<int>(size.x * size.y * size.z), cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int threads,
                                                          std::size_t bytes) {
  if (static_cast<int>(bytes) > opted_in) return cudaErrorInvalidValue;
  *blocks = std::min(2048 / threads, (64 << 10) / std::max(static_cast<int>(bytes), 1024));
  return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void*, void**) {
  std::printf("%u blocks:", config->gridDim.x);
  for (unsigned i = 0; i < config->numAttrs; ++i) std::printf(" %d", config->attrs[i].id);
  return std::puts(""), cudaSuccess;
}
}

#include "cuda_launch.cuh"
using namespace kernelmint;
void kernel() {}
void print(const CudaLaunch& launch) {
  const LaunchContext context = {.facts = {.sm_count = 10, .max_shared_memory = 100'000}};
  const ResidentBlocks resident = max_resident_blocks<&kernel>(launch, context);
  std::printf("%lld; ", static_cast<long long>(resident.count));
  const LaunchResult result = launch_cuda<&kernel>(launch, context);
  if (result.error != nullptr) std::puts(result.error);
}
int main() {
  print({.grid = {20}, .block = {1024}, .cooperative = true});
  print({.grid = {21}, .block = {1024}});
  print({.grid = {21}, .block = {1024}, .cooperative = true});
  print({.grid = {5, 2}, .block = {32, 8}, .shared_memory = 60'000, .cooperative = true});
  print({.grid = {5, 3}, .block = {32, 8}, .shared_memory = 60'000, .cooperative = true});
  print({.grid = {1}, .block = {256}, .shared_memory = 70'000, .cooperative = true});
  print({.grid = {16}, .block = {32}, .cluster = {4}, .cooperative = true});
  print({.grid = {20}, .block = {32}, .cluster = {4}, .cooperative = true});
  print({.grid = {INT32_MAX, 65535, 65535}, .block = {32}, .cooperative = true});
  is_cooperative = 0;
  print({.grid = {1}, .block = {32}, .cooperative = true});
}
"""
AT_ONCE = "that this device holds at once: bound the grid by max_resident_blocks"
COOPERATIVE = [
    "20; 20 blocks: 2",
    "20; 21 blocks:",
    f"20; got a cooperative launch of 21 x 1 x 1 blocks, expected at most the 20 {AT_ONCE}",
    "10; 5 blocks: 2",
    f"10; got a cooperative launch of 5 x 3 x 1 blocks, expected at most the 10 {AT_ONCE}",
    "0; got blocks of 256 threads and 70000 bytes of dynamic shared memory, in clusters of 1, "
    "expected what this device has room for once: use fewer registers, threads or bytes",
    "16; 16 blocks: 4 2",
    f"16; got a cooperative launch of 20 x 1 x 1 blocks, expected at most the 16 {AT_ONCE}",
    "640; got a cooperative launch of 2147483647 x 65535 x 65535 blocks, expected at most the 640 "
    f"{AT_ONCE}",
    "640; this device has no cooperative launches (cudaDevAttrCooperativeLaunch)",
]


def test_a_cooperative_launch_has_the_blocks_that_the_device_holds_at_once(tmp_path: Path) -> None:
    (tmp_path / "program.cpp").write_text(DEVICE)
    program = nvcc(tmp_path, "-cudart=none", "program.cpp")
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == COOPERATIVE


# Work on a stream and graphs end when the program says so.
OBJECTS = r"""
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

struct CUevent_st { bool has_ended = false; };
struct CUuserObject_st { void* object; cudaHostFn_t destroy; };
static std::vector<CUevent_st*> events;
static std::vector<CUuserObject_st> graphs;
static bool is_capturing = false;
extern "C" {
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error of CUDA"; }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status,
                                     unsigned long long*, cudaGraph_t*, const cudaGraphNode_t**,
                                     const cudaGraphEdgeData**, std::size_t*) {
  *status = is_capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaUserObjectCreate(cudaUserObject_t* owner, void* object, cudaHostFn_t destroy,
                                 unsigned, unsigned) {
  return *owner = new CUuserObject_st{object, destroy}, cudaSuccess;
}
cudaError_t cudaGraphRetainUserObject(cudaGraph_t, cudaUserObject_t owner, unsigned, unsigned) {
  return graphs.push_back(*owner), cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return *event = new CUevent_st, cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  return events.push_back(event), cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return event->has_ended ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
}

#include "release_after_work.cuh"

void release(unsigned long long object) { std::printf(" %llu", object); }
void launch(unsigned long long object) {
  const auto result = kernelmint::release_after_work<&release>(object, {});
  std::puts(result.error == nullptr ? "" : result.error);
}
int main() {
  launch(1);
  launch(2);
  is_capturing = true;
  launch(3);
  is_capturing = false;
  events[1]->has_ended = true;
  launch(4);  // releases 2
  launch(5);
  events[0]->has_ended = true;
  graphs[0].destroy(graphs[0].object);
  launch(6);  // releases 3 and 1
  launch(7);
}
"""


def test_objects_are_released_after_the_work_and_graphs_that_use_them(tmp_path: Path) -> None:
    (tmp_path / "program.cpp").write_text(OBJECTS)
    program = nvcc(tmp_path, "-cudart=none", "program.cpp")
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["", "", "", " 2", "", " 3 1", ""]
