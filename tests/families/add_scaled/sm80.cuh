// A block takes a chunk of the tensors at a place of the lists.
#pragma once

#include <cstdint>

#include "cuda_launch.cuh"
#include "dtypes.h"
#include "tensor_chunks.cuh"

namespace kernelmint::add_scaled {

constexpr int kChunk = 4096, kThreads = 256;

template <class Config>
__global__ void __launch_bounds__(kThreads)
    add_scaled_sm80(const __grid_constant__ TensorChunks<2> chunks, float of_x, float of_y) {
  using T = typename Config::dtype;
  const int tensor = chunks.block_to_tensor[blockIdx.x];
  const std::int64_t begin = std::int64_t{kChunk} * chunks.block_to_chunk[blockIdx.x];
  T* y = static_cast<T*>(chunks.addresses[0][tensor]);
  const T* x = static_cast<const T*>(chunks.addresses[1][tensor]);
  const std::int64_t end = smaller(begin + kChunk, chunks.sizes[tensor]);
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads)
    y[i] = static_cast<T>(of_x * static_cast<float>(x[i]) + of_y * static_cast<float>(y[i]));
}

}  // namespace kernelmint::add_scaled

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  const auto launch_blocks = [&](const TensorChunks<2>& chunks, int blocks) {
    return launch_cuda<&add_scaled::add_scaled_sm80<Config>>(
        {.grid = {blocks}, .block = {add_scaled::kThreads}}, context, chunks, args.factors[0],
        args.factors[1]);
  };
  return launch_chunks<TensorChunks<2>>(add_scaled::kChunk, launch_blocks, args.y, args.x);
}

}  // namespace kernelmint
