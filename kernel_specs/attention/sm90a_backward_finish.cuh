// dQ as a tensor, of one block of queries.
#pragma once

#include <cstdint>

#include "attention/backward_hidden_values.cuh"
#include "attention/hidden_values.cuh"
#include "attention/sm90a_backward_shared_memory.cuh"
#include "ptx/math.cuh"
#include "register_tile.cuh"

namespace kernelmint::attention_backward::sm90a {

// Shared memory of the kernel that finishes dQ, if queries do not see all keys.
template <class Config>
inline constexpr int kRemakeBytes = sizeof(Remake<Config, 128 * Config::n_warpgroups, int>);

// The same as finish_block for wide heads: a warp has 16 queries by its warpgroup's columns, in
// panels of 64.
template <class Config>
__device__ __forceinline__ bool finish_wide_block(const float* sums, int index, bool sees_keys,
                                                  typename Config::dtype* dq, std::int64_t stride,
                                                  std::int64_t count, int columns, float scale) {
  using Element = typename Config::dtype;
  constexpr int kPanels = kPanelsOfWarpgroup<Config>;
  std::uint32_t zeros = 0;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const float* const from = sums + std::int64_t{index} * (Config::B_r * Config::padded_head) +
                            warp * kPanels * 1024 + lane * ptx::kQuadLaneStep;
  unroll<kPanels>([&](int panel) {
    float values[32] = {};
    if (sees_keys)
      unroll<8>([&](int quad) {
        ptx::load_quad(*reinterpret_cast<float (*)[4]>(&values[4 * quad]),
                       from + panel * 1024 + quad * 128);
      });
    unroll<4>([&](int c) {  // one of the lane's rows, of 32 columns
      std::uint32_t words[4];
      unroll<4>([&](int i) {
        const int e = (c / 2 * 4 + i) * 4 + c % 2 * 2;
        words[i] = ptx::pack<Element>(values[e] * scale, values[e + 1] * scale);
      });
      transpose_quad(words);
      const int query = warp % 4 * 16 + lane / 4 + c % 2 * 8;
      const int column = (warp / 4 * kPanels + panel) * 64 + c / 2 * 32 + lane % 4 * 8;
      const uint4 eight{words[0], words[1], words[2], words[3]};
      zeros = attention::add_zeros<Element>(eight, zeros);
      if (query < count && column < columns)
        *reinterpret_cast<uint4*>(dq + query * stride + column) = eight;
    });
  });
  return (zeros & 0x7fff7fffu) == 0;
}

// The same for wide heads whose warpgroups have half of the columns each, in chunks of 8: four
// floats a thread.
template <class Config>
__device__ __forceinline__ bool finish_halves(const float* sums, int index, bool sees_keys,
                                              typename Config::dtype* dq, std::int64_t stride,
                                              std::int64_t count, int columns, float scale) {
  using Element = typename Config::dtype;
  constexpr int kColumns = Config::padded_head / 2;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, half = threadIdx.x / 128;
  const float4* const from = reinterpret_cast<const float4*>(sums) +
                             (std::int64_t{index} * 2 + half) * (Config::B_r * kColumns / 4) +
                             threadIdx.x % 128;
  std::uint32_t zeros = 0;
  float4 values[kColumns / 8];
  unroll<kColumns / 8>(
      [&](int c) { values[c] = sees_keys ? __ldcg(from + c * 128) : float4{0, 0, 0, 0}; });
  unroll<kColumns / 16>([&](int c) {  // one of the lane's rows, of 32 columns
    std::uint32_t words[4];
    unroll<4>([&](int i) {
      const float4& x = values[c / 2 * 4 + i];
      words[i] = c % 2 == 0 ? ptx::pack<Element>(x.x * scale, x.y * scale)
                            : ptx::pack<Element>(x.z * scale, x.w * scale);
    });
    transpose_quad(words);
    const int query = warp * 16 + lane / 4 + c % 2 * 8;
    const int column = half * kColumns + c / 2 * 32 + lane % 4 * 8;
    const uint4 eight{words[0], words[1], words[2], words[3]};
    zeros = attention::add_zeros<Element>(eight, zeros);
    if (query < count && column < columns)
      *reinterpret_cast<uint4*>(dq + query * stride + column) = eight;
  });
  return (zeros & 0x7fff7fffu) == 0;
}

// The index-th block's dQ from the order of the registers, scaled and rounded, as `count` rows of
// `columns`, d_head if not `kNarrow`. It is zero if the block sees no keys. False if the thread has
// values that are not finite.
template <class Config, bool kNarrow>
__device__ __forceinline__ bool finish_block(const float* sums, int index, bool sees_keys,
                                             typename Config::dtype* dq, std::int64_t stride,
                                             std::int64_t count, int columns, float scale) {
  using Element = typename Config::dtype;
  if constexpr (Config::by_keys)
    return finish_halves<Config>(sums, index, sees_keys, dq, stride, count, columns, scale);
  if constexpr (kIsWide<Config>)
    return finish_wide_block<Config>(sums, index, sees_keys, dq, stride, count, columns, scale);
  // A warpgroup's part is 64 columns by its queries, 8 of them in a chunk: four floats a thread.
  constexpr int kQueries = kPartQueries<Config>;
  constexpr int kChunks = kQueries / 8, kPairs = (kChunks + 1) / 2;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, part = threadIdx.x / 128;
  const int threads = part == 0 ? 128 : kLastPartThreads<Config>;
  if (Config::d_head == 96 && warp * 32 >= threads) return true;
  const float4* const from = reinterpret_cast<const float4*>(sums) +
                             (std::int64_t{index} * 2 + part) * (kQueries * 16) + warp * 32 + lane;
  float4 values[2 * kPairs];
  unroll<2 * kPairs>([&](int i) {
    values[i] = sees_keys && i < kChunks ? __ldcg(from + i * threads) : float4{0, 0, 0, 0};
  });
  std::uint32_t zeros = 0;
  const int first_query = kQueries < Config::B_r ? part * kQueries : 0;
  const int first_column = (kQueries < Config::B_r ? 0 : part * 64) + warp * 16;
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
    if ((kNarrow || Config::d_head < Config::padded_head) && first_column + eight * 8 >= columns)
      return;
    std::uint32_t words[4];
    unroll<4>(
        [&](int i) { words[i] = ptx::pack<Element>(own[2 * i] * scale, own[2 * i + 1] * scale); });
    const uint4 values_of_query{words[0], words[1], words[2], words[3]};
    zeros = attention::add_zeros<Element>(values_of_query, zeros);
    *reinterpret_cast<uint4*>(dq + query * stride + first_column + eight * 8) = values_of_query;
  });
  return (zeros & 0x7fff7fffu) == 0;
}

}  // namespace kernelmint::attention_backward::sm90a
