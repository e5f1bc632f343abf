// Split keys: the results of several thread blocks, each for its part of a tile's keys, and their
// combination.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/flash_forward/sm90a_epilogue.cuh"
#include "attention/flash_forward/sm90a_problem.h"
#include "attention/flash_forward/sm90a_tile_scheduler.cuh"
#include "attention/softmax.cuh"
#include "ptx/dependent_launch.cuh"
#include "register_tile.cuh"

namespace kernelmint::flash_forward::sm90a {

using namespace attention;

// Outputs of parts, as they are in the registers of a warpgroup, with the maxima and sums of their
// rows: of a part, for each warpgroup, for each 8 columns and then once more, a float4 of each
// thread.
template <class Config>
class Parts {
  static constexpr int kThreads = 128;  // a warpgroup

 public:
  static constexpr int kOutputs = Config::d_head / 8;  // float4 of a thread
  static constexpr std::size_t kFloat4s =              // the size of a part
      std::size_t{Config::n_warpgroups} * (kOutputs + 1) * kThreads;

  // For the calling thread of a warpgroup.
  __device__ Parts(const KeySplit& split, int warpgroup)
      : split_(split), offset_(warpgroup * (kOutputs + 1) * kThreads + threadIdx.x % kThreads) {}

  template <class Output, class Softmax>
  __device__ __forceinline__ void store(int part, Output& output, const Softmax& softmax) const {
    float4* to = values(part);
    auto& accumulator = output.accumulator(0);
    unroll<kOutputs>([&](int i) {
      to[i * kThreads] = {accumulator[4 * i], accumulator[4 * i + 1], accumulator[4 * i + 2],
                          accumulator[4 * i + 3]};
    });
    const auto first = softmax.row(0), second = softmax.row(1);
    to[kOutputs * kThreads] = {first.maximum, first.sum, second.maximum, second.sum};
  }

  // The i-th float4 of the output.
  __device__ __forceinline__ float4 output(int part, int i) const {
    return values(part)[i * kThreads];
  }
  // The maximum and the sum of the first row, and of the second.
  __device__ __forceinline__ float4 rows(int part) const { return output(part, kOutputs); }

 private:
  __device__ __forceinline__ float4* values(int part) const {
    return split_.parts + part * kFloat4s + offset_;
  }

  const KeySplit& split_;
  int offset_;
};

// For each warpgroup's slab of each tile whose keys are split, and 32 columns of it: a block of 128
// threads, which take the parts' values in their order.
template <class Config>
__global__ void __launch_bounds__(128)
    merge_parts(const __grid_constant__ Problem<typename Config::Args> problem) {
  using Output = RegisterTile<16, 32>;
  ptx::wait_for_kernel_ahead();
  const int index = blockIdx.x, warpgroup = blockIdx.y, group = blockIdx.z;
  const KeySplit& split = problem.split;
  const Parts<Config> parts(split, warpgroup);
  // The thread blocks with the tile's first block of keys, and with its last.
  const int first = index * split.blocks / split.share;
  const int last = ((index + 1) * split.blocks - 1) / split.share;
  OnlineSoftmax<2, true> softmax(softmax_scale(problem.args));
  Output output;
  output.zero();
  for (int thread_block = first; thread_block <= last; ++thread_block) {
    // The tile is the second of a thread block that begins with another one.
    const int part = 2 * thread_block + (thread_block * split.share < index * split.blocks);
    const float4 rows = parts.rows(part);
    const auto upper = softmax.merge(0, {rows.x, rows.y}),
               lower = softmax.merge(1, {rows.z, rows.w});
    unroll<4>([&](int i) {
      const float4 other = parts.output(part, 4 * group + i);
      upper.apply(output(0, 2 * i), other.x);
      upper.apply(output(0, 2 * i + 1), other.y);
      lower.apply(output(1, 2 * i), other.z);
      lower.apply(output(1, 2 * i + 1), other.w);
    });
  }
  const Tile tile = TileOrder<Config>(problem)[split.whole_tiles + index];
  Epilogue<Config>(problem, SharedMemory<Config>(0), warpgroup)
      .to_global(tile, output, softmax, 32 * group);
}

}  // namespace kernelmint::flash_forward::sm90a
