// Launches for GPUs: upstream's kernels, as functions that kernels of a configuration call, and the
// passes around them, which upstream leaves to PyTorch's operators. Kernels take the arguments of
// upstream's kernels, in the same order, and so have their machine code (same_code.py).
#pragma once

#include <ATen/cuda/detail/IndexUtils.cuh>
#include <cassert>

#include "cuda_launch.cuh"
#include "integers.h"
#include "torch_scatter/elements.h"

// clang-format off: upstream's, each after what it needs
#include "atomics.cuh"
#include "index_info.cuh"
#include "scatter_reducer.cuh"
#include "scatter_warp.cuh"
#include "scatter_csr.cuh"
#include "scatter_coo.cuh"
#include "scatter_any.cuh"
// clang-format on

namespace kernelmint::torch_scatter {

#include "torch_scatter/reduction.h"

constexpr int kThreads = 256;
using Info = at::cuda::detail::TensorInfo<std::int64_t, int>;

inline CudaLaunch one_thread_each(std::int64_t count) {
  return {.grid = {ceil_div(count, kThreads)}, .block = {kThreads}};
}

// An index as upstream's kernels take it, of the first dimensions of its view; `kept` is the
// dimension whose extent they read. Each dimension beyond the first costs them a division an
// element, so dimensions are joined where possible.
template <int kDims, class View>
Info info_of(const View& view, const std::int64_t (&extents)[kDims], int kept = -1) {
  int sizes[kDims], strides[kDims];
  for (int i = 0; i < kDims; ++i) {
    sizes[i] = static_cast<int>(extents[i]);
    strides[i] = static_cast<int>(view.stride[i]);
  }
  Info info(static_cast<std::int64_t*>(const_cast<void*>(view.data)), kDims, sizes, strides);
  info.collapseDims(kept);
  return info;
}

// The passes around a kernel: kEach elements a thread, a block's next to each other.
constexpr int kEach = 4;

inline CudaLaunch some_each_thread(std::int64_t count) {
  return {.grid = {ceil_div(count, kEach * kThreads)}, .block = {kThreads}};
}

template <class Each>
__device__ void for_some(std::int64_t count, const Each& each) {
  const std::int64_t first = std::int64_t{blockIdx.x} * (kEach * kThreads) + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    if (first + i * kThreads < count) each(first + i * kThreads);
}

template <class Config>
constexpr bool has_arg() {
  return reduction_of<Config>() == MIN || reduction_of<Config>() == MAX;
}

// The state of a result before values are reduced into it: its first value, and no arg.
template <class Config>
__global__ void begin_result(const typename Config::Args args, std::int64_t size) {
  using T = element_t<typename Config::dtype>;
  T* result = args.result.template as<T>();
  for_some(size, [&](std::int64_t i) {
    result[i] = args.initial.data != nullptr ? args.initial.template as<const T>()[i]
                                             : Reducer<T, reduction_of<Config>()>::init();
    if constexpr (has_arg<Config>()) args.arg.template as<std::int64_t>()[i] = args.E;
  });
}

// The pass afterwards: an element that still has its first value becomes 0.
template <class Config>
__global__ void end_result(const typename Config::Args args, std::int64_t size) {
  using T = element_t<typename Config::dtype>;
  T* result = args.result.template as<T>();
  for_some(size, [&](std::int64_t i) {
    if (result[i] == Reducer<T, reduction_of<Config>()>::init()) result[i] = T(0);
  });
}

}  // namespace kernelmint::torch_scatter
