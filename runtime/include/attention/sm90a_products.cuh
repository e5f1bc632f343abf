// The two products of a block of keys and values, which run beside the code after them. Their
// shapes are the family's to include, <family>/sm90a_wgmma.cuh.
#pragma once

#include <cstdint>

#include "attention/sm90a_shared_memory.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/wgmma.cuh"
#include "register_tile.cuh"

namespace kernelmint::attention::sm90a {

// A left operand in registers: for each 16 columns a fragment. Probabilities, for P V; queries.
template <int kColumns>
using Fragments = std::uint32_t[kColumns / 16][4];

template <int kCount>
__device__ __forceinline__ void pin(std::uint32_t (&fragments)[kCount][4]) {
  unroll<kCount>([&](int i) { ptx::pin(fragments[i]); });
}

// A slab of queries, by its address in shared memory, to registers.
template <class Config>
__device__ __forceinline__ void load_queries(Fragments<Config::d_head>& fragments,
                                             std::uint32_t queries) {
  const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
  unroll<Config::d_head / 16>([&](int i) {
    const int chunk = (i % 4 * 2 + lane / 16) ^ (row & 7);
    ptx::ldmatrix_x4(fragments[i], queries + i / 4 * kSlabRows * kPanelRowBytes +
                                       row * kPanelRowBytes + chunk * 16);
  });
}

// S = Q K^T of queries in registers and a block of keys, by its address in shared memory.
template <class Config>
__device__ __forceinline__ void multiply_queries_keys(RegisterTile<16, Config::B_c>& scores,
                                                      Fragments<Config::d_head>& queries,
                                                      std::uint32_t keys) {
  auto& accumulator = scores.accumulator(0);
  const std::uint64_t first_b = ptx::swizzled_descriptor(keys);
  pin(queries);
  ptx::pin(accumulator);
  ptx::wgmma_fence();
  unroll<Config::d_head / 16>([&](int i) {
    const std::uint32_t column = i % 4 * 32, panel = i / 4 * kPanelRowBytes;
    ptx::Wgmma<typename Config::dtype, Config::B_c>::registers_shared(
        accumulator, queries[i], ptx::advance(first_b, panel * Config::B_c + column), i != 0);
  });
  ptx::wgmma_commit_group();
  ptx::pin(accumulator);
}

// The same of a slab of queries in shared memory, by its address.
template <class Config>
__device__ __forceinline__ void multiply_queries_keys(RegisterTile<16, Config::B_c>& scores,
                                                      std::uint32_t queries, std::uint32_t keys) {
  auto& accumulator = scores.accumulator(0);
  const std::uint64_t first_a = ptx::swizzled_descriptor(queries);
  const std::uint64_t first_b = ptx::swizzled_descriptor(keys);
  ptx::pin(accumulator);
  ptx::wgmma_fence();
  unroll<Config::d_head / 16>([&](int i) {
    const std::uint32_t column = i % 4 * 32, panel = i / 4 * kPanelRowBytes;
    ptx::Wgmma<typename Config::dtype, Config::B_c>::shared_shared(
        accumulator, ptx::advance(first_a, panel * kSlabRows + column),
        ptx::advance(first_b, panel * Config::B_c + column), i != 0);
  });
  ptx::wgmma_commit_group();
  ptx::pin(accumulator);
}

// O += P V, or O = P V, of a block of values.
template <class Config>
__device__ __forceinline__ void multiply_probabilities_values(
    RegisterTile<16, Config::d_head>& output, Fragments<Config::B_c>& probabilities,
    std::uint32_t values, bool accumulate) {
  auto& accumulator = output.accumulator(0);
  const std::uint64_t first_b = ptx::swizzled_descriptor(values, Config::B_c * kPanelRowBytes);
  pin(probabilities);
  ptx::pin(accumulator);
  ptx::wgmma_fence();
  unroll<Config::B_c / 16>([&](int i) {
    ptx::Wgmma<typename Config::dtype, Config::d_head>::registers_transposed(
        accumulator, probabilities[i], ptx::advance(first_b, i * 16 * kPanelRowBytes),
        i != 0 || accumulate);
  });
  ptx::wgmma_commit_group();
  ptx::pin(accumulator);
}

}  // namespace kernelmint::attention::sm90a
