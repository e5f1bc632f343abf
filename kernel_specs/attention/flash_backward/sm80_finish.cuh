// The kernel after the main one: dQ as a tensor.
#pragma once

#include <cstdint>

#include "attention/flash_backward/hidden_values.cuh"
#include "attention/flash_backward/problem.h"
#include "attention/flash_backward/sm80_equal_sequences.cuh"
#include "attention/hidden_values.cuh"
#include "attention/sm80_backward_copy.cuh"
#include "attention/sm80_backward_query_gradients.cuh"
#include "ptx/atomic.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/shared_memory.cuh"

namespace kernelmint::flash_backward::sm80 {

using namespace attention_backward::sm80;

// dQ, scaled and rounded, of a block of queries, from the order of the registers; and gradients
// that hidden values have reached. For more than one block at a time ptxas would spill.
template <class Config>
__global__ void __launch_bounds__(Config::threads, 1)
    finish_queries(const __grid_constant__ Problem<typename Config::Args> problem) {
  using Element = typename Config::dtype;
  using Tile = QueryGradientTile<Config>;
  using Layout = SharedLayout<Config::d_head, true>;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  ptx::wait_for_kernel_ahead();
  const auto& args = problem.args;
  const int block = static_cast<int>(blockIdx.x) % problem.query_blocks;
  const int heads = static_cast<int>(blockIdx.x) / problem.query_blocks;
  const int head = heads % static_cast<int>(args.H), batch = heads / static_cast<int>(args.H);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  typename Tile::Values values;
  values.zero();
  const bool sees_keys = args.Sk > 0 && block >= first_query_block<Config>(problem, 0);
  const bool hides_keys = Config::causal && sees_keys;
  bool reached = hides_keys && attention_backward::may_be_reached<Config, Config::threads>(
                                   problem, FindQueries<Config>()(problem));
  if (sees_keys) {
    float* const from =
        problem.dq +
        std::int64_t{block_index(problem, batch, head, block)} * (Config::B_r * Config::d_head) +
        warp * Tile::kFloats;
    Tile::for_each(values, from, lane,
                   [](float (&quad)[4], const float* at) { ptx::load_quad(quad, at); });
  }
  values.for_each([&](float& value) {
    value *= args.scale;
    reached |= !attention::is_finite(value);
  });
  const std::uint32_t tile = ptx::shared_address(shared_memory);
  store_rounded<Element, Layout>(tile, Tile::first_query(warp), Tile::first_column(warp), values);
  __syncthreads();
  RowCopy<Config, Layout, Config::B_r>::store(tile, args.dq.template at<Element>(batch, 0, head),
                                              args.dq.stride[1], block * Config::B_r,
                                              Rows{static_cast<int>(args.Sq)});
  if (hides_keys && __syncthreads_or(reached))
    attention_backward::remake<Config, Config::threads, FindQueries<Config>>(problem);
}

}  // namespace kernelmint::flash_backward::sm80
