// The two products of a block of keys and values, which run beside what follows.
#pragma once

#include <cstdint>

#include "flash_forward/sm90a_shared_memory.cuh"
#include "flash_forward/sm90a_wgmma.cuh"
#include "ptx/wgmma.cuh"
#include "register_tile.cuh"

namespace kernelmint::flash_forward::sm90a {

// Probabilities as the left operand of P V: for each 16 keys a fragment.
template <int kKeys>
using Probabilities = std::uint32_t[kKeys / 16][4];

template <int kCount>
__device__ __forceinline__ void pin(std::uint32_t (&fragments)[kCount][4]) {
  unroll<kCount>([&](int i) { ptx::pin(fragments[i]); });
}

// S = Q K^T of a slab of queries and a block of keys, by their addresses in shared memory.
template <class Config>
__device__ __forceinline__ void multiply_queries_keys(RegisterTile<16, Config::B_c>& scores,
                                                      std::uint32_t queries, std::uint32_t keys) {
  using Shared = SharedMemory<Config>;
  auto& accumulator = scores.accumulator(0);
  const std::uint64_t first_a = ptx::swizzled_descriptor(queries);
  const std::uint64_t first_b = ptx::swizzled_descriptor(keys);
  ptx::pin(accumulator);
  ptx::wgmma_fence();
  unroll<Config::d_head / 16>([&](int i) {
    const std::uint32_t column = i % 4 * 32, panel = i / 4 * Shared::kPanelRowBytes;
    ptx::Wgmma<typename Config::dtype, Config::B_c>::shared_shared(
        accumulator, ptx::advance(first_a, panel * Shared::kSlabRows + column),
        ptx::advance(first_b, panel * Config::B_c + column), i != 0);
  });
  ptx::wgmma_commit_group();
  ptx::pin(accumulator);
}

// O += P V, or O = P V, of a block of values.
template <class Config>
__device__ __forceinline__ void multiply_probabilities_values(
    RegisterTile<16, Config::d_head>& output, Probabilities<Config::B_c>& probabilities,
    std::uint32_t values, bool accumulate) {
  using Shared = SharedMemory<Config>;
  auto& accumulator = output.accumulator(0);
  const std::uint64_t first_b =
      ptx::swizzled_descriptor(values, Config::B_c * Shared::kPanelRowBytes);
  pin(probabilities);
  ptx::pin(accumulator);
  ptx::wgmma_fence();
  unroll<Config::B_c / 16>([&](int i) {
    ptx::Wgmma<typename Config::dtype, Config::d_head>::registers_transposed(
        accumulator, probabilities[i], ptx::advance(first_b, i * 16 * Shared::kPanelRowBytes),
        i != 0 || accumulate);
  });
  ptx::wgmma_commit_group();
  ptx::pin(accumulator);
}

}  // namespace kernelmint::flash_forward::sm90a
