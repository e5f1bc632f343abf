// Attention backward of sequences of any lengths for compute capability 8.0 and later:
// flash_backward's thread blocks, over the blocks of keys of all sequences. A kernel that does more
// to scores than multiply them by a factor is another one, with `kChangesScores`.
#pragma once

#include "attention/hidden_values.cuh"
#include "attention/prefill_backward_hidden_values.cuh"
#include "attention/prefill_backward_rows.cuh"
#include "attention/sm80_backward_block.cuh"
#include "attention/sm80_backward_copy.cuh"
#include "attention/sm80_backward_query_gradients.cuh"
#include "attention/sm80_prefill_backward_any_lengths.cuh"
#include "ptx/atomic.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/shared_memory.cuh"

namespace kernelmint::flash_prefill_backward::sm80 {

template <class Config>
__global__ void __launch_bounds__(256)
    prepare_rows(const __grid_constant__ Problem<typename Config::Args> problem) {
  prepare_block<Config>(problem);
}

template <class Config, bool kChangesScores>
__global__ void __launch_bounds__(Config::threads, Config::resident_blocks)
    flash_prefill_backward_sm80(const __grid_constant__ Problem<typename Config::Args> problem) {
  using Sequences = AnyLengths<Config, kChangesScores>;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  ptx::let_next_kernel_start();
  Sequences::find_tile(problem);
  attention_backward::sm80::Backward<Config, Sequences>(problem, ptx::shared_address(shared_memory))
      .run();
}

// dQ, scaled and rounded, of a block of queries, from the order of the registers; and gradients
// that hidden values have reached. For more than one block at a time ptxas would spill.
template <class Config>
__global__ void __launch_bounds__(Config::threads, 1)
    finish_queries(const __grid_constant__ Problem<typename Config::Args> problem) {
  using namespace attention_backward::sm80;
  using Element = typename Config::dtype;
  using Tile = QueryGradientTile<Config>;
  using Layout = SharedLayout<Config::d_head, true>;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  ptx::wait_for_kernel_ahead();
  const auto& args = problem.args;
  const BlockOfQueries<Config, Problem<typename Config::Args>> at(problem);
  if constexpr (attention::DropsOut<typename Config::Args>)
    clear_queries_before<Element>(problem, at);
  if (!at.exists()) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const bool hides_keys = flash_prefill_backward::hides_keys(problem, at);
  bool reached = hides_keys && attention_backward::may_be_reached<Config, Config::threads>(
                                   problem, FindQueries<Config>::of(problem, at));
  typename Tile::Values values;
  values.zero();
  if (!problem.stores_first || at.sees_keys(problem))
    Tile::for_each(
        values,
        problem.dq + std::int64_t{at.index} * (Config::B_r * Config::d_head) + warp * Tile::kFloats,
        lane, [](float (&quad)[4], const float* from) { ptx::load_quad(quad, from); });
  values.for_each([&](float& value) {
    value *= args.softmax_scale * attention::keep_scale_of(args);
    reached |= !attention::is_finite(value);
  });
  const std::uint32_t tile = ptx::shared_address(shared_memory);
  store_rounded<Element, Layout>(tile, Tile::first_query(warp), Tile::first_column(warp), values);
  __syncthreads();
  RowCopy<Config, Layout, Config::B_r>::store(
      tile, args.dq.template at<Element>(at.region.entry, at.region.first_row, at.head),
      args.dq.stride[1], at.block * Config::B_r, Part{0, at.region.rows, static_cast<int>(args.D)});
  if (hides_keys && __syncthreads_or(reached))
    attention_backward::remake<Config, Config::threads, FindQueries<Config>>(problem);
}

template <class Config>
__global__ void __launch_bounds__(32)
    finish_sinks(const __grid_constant__ Problem<typename Config::Args> problem) {
  finish_sink<Config>(problem);
}

template <class Config>
__global__ void __launch_bounds__(32)
    finish_slopes(const __grid_constant__ Problem<typename Config::Args> problem) {
  finish_slope<Config, Config::threads>(problem);
}

}  // namespace kernelmint::flash_prefill_backward::sm80

#include "attention/sm80_prefill_backward_launch.cuh"
