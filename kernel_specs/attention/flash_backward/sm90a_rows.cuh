// The kernel after the main one: dQ as a tensor.
#pragma once

#include <cstdint>

#include "attention/flash_backward/problem.h"
#include "attention/flash_backward/sm90a_shared_memory.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/math.cuh"
#include "register_tile.cuh"

namespace kernelmint::flash_backward {

// The index-th block's dQ from the order of the registers, scaled and rounded, as `count` rows of
// `columns`, d_head if not `kNarrow`. It is zero if the block sees no keys.
template <class Config, bool kNarrow>
__device__ __forceinline__ void finish_block(const float* sums, int index, bool sees_keys,
                                             typename Config::dtype* dq, std::int64_t stride,
                                             std::int64_t count, int columns, float scale) {
  using Element = typename Config::dtype;
  // A warpgroup's part is 64 columns by its queries, 8 of them in a chunk: four floats a thread.
  constexpr int kPartQueries = sm90a::kPartQueries<Config>;
  constexpr int kChunks = kPartQueries / 8, kPairs = (kChunks + 1) / 2;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, part = threadIdx.x / 128;
  const float4* const from = reinterpret_cast<const float4*>(sums) +
                             (std::int64_t{index} * 2 + part) * (kPartQueries * 16) + warp * 32 +
                             lane;
  float4 values[2 * kPairs];
  unroll<2 * kPairs>([&](int i) {
    values[i] = sees_keys && i < kChunks ? __ldcg(from + i * 128) : float4{0, 0, 0, 0};
  });
  const int first_query = kPartQueries < Config::B_r ? part * kPartQueries : 0;
  const int first_column = (kPartQueries < Config::B_r ? 0 : part * 64) + warp * 16;
  unroll<kPairs>([&](int pair) {
    // Eight lanes have one column each of the same two queries, and one eight columns further, in
    // two chunks. They exchange values until each has eight columns of one query.
    const float4 &a = values[2 * pair], &b = values[2 * pair + 1];
    float own[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    unroll<3>([&](int level) {
      const int distance = 1 << level;
      const bool is_upper = lane / 4 & distance;
      unroll<4>([&](int i) {
        const int low = (i >> level << (level + 1)) | (i & (distance - 1)), high = low + distance;
        const float received = __shfl_xor_sync(~0u, is_upper ? own[low] : own[high], distance * 4);
        if (is_upper)
          own[low] = received;
        else
          own[high] = received;
      });
    });
    // The lane has the values that were own[lane / 4]: of a chunk, an eight of columns, a query.
    const int chunk = 2 * pair + lane / 16, eight = lane / 8 % 2;
    const std::int64_t query = first_query + chunk * 8 + lane % 4 * 2 + lane / 4 % 2;
    if (query >= count || chunk >= kChunks) return;
    if (kNarrow && first_column + eight * 8 >= columns) return;
    std::uint32_t words[4];
    unroll<4>(
        [&](int i) { words[i] = ptx::pack<Element>(own[2 * i] * scale, own[2 * i + 1] * scale); });
    *reinterpret_cast<uint4*>(dq + query * stride + first_column + eight * 8) =
        uint4{words[0], words[1], words[2], words[3]};
  });
}

// dQ as a tensor.
template <class Config>
__global__ void __launch_bounds__(256)
    finish_queries(const __grid_constant__ Problem<typename Config::Args> problem) {
  using Element = typename Config::dtype;
  ptx::wait_for_kernel_ahead();
  const auto& args = problem.args;
  const int block = static_cast<int>(blockIdx.x) % problem.query_blocks;
  const int heads = static_cast<int>(blockIdx.x) / problem.query_blocks;
  const int head = heads % static_cast<int>(args.H), batch = heads / static_cast<int>(args.H);
  const std::int64_t first = std::int64_t{block} * Config::B_r;
  finish_block<Config, false>(problem.dq, block_index(problem, batch, head, block),
                              args.Sk > 0 && block >= first_query_block<Config>(problem, 0),
                              args.dq.template as<Element>() + batch * args.dq.stride[0] +
                                  head * args.dq.stride[2] + first * args.dq.stride[1],
                              args.dq.stride[1], args.Sq - first, Config::d_head, args.scale);
}

}  // namespace kernelmint::flash_backward
