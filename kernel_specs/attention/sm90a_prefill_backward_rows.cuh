// The kernels before and after the main one. dQ of a sequence's head is finished when its own tiles
// are done, while multiprocessors that have no more tiles wait for those of others.
#pragma once

#include <cstdint>

#include "attention/prefill_backward_hidden_values.cuh"
#include "attention/prefill_backward_rows.cuh"
#include "attention/sm90a_backward_finish.cuh"
#include "attention/sm90a_prefill_backward_order.cuh"
#include "attention/sm90a_prefill_backward_problem.h"
#include "integers.h"
#include "ptx/atomic.cuh"
#include "ptx/dependent_launch.cuh"

namespace kernelmint::flash_prefill_backward {

template <class Config>
__global__ void __launch_bounds__(256)
    prepare_rows(const __grid_constant__ sm90a::Problem<typename Config::Args> problem) {
  if (blockIdx.x == 0) sm90a::make_order<Config>(problem);
  if (problem.next_sums == nullptr) return prepare_block<Config>(problem);
  // The main kernel makes the values. A thread block has a head of a sequence.
  ptx::let_next_kernel_start();
  clear_counters(problem);
  if (!problem.one_counter) return;
  const int heads = static_cast<int>(problem.args.H);
  const Region region =
      queries_of<Config>(problem.args, problem.sequences, static_cast<int>(blockIdx.x) / heads);
  if (region.end > 0)
    clear_block<Config>(problem, static_cast<int>(blockIdx.x) % heads * problem.query_blocks +
                                     region.first_block + (region.end - 1) / Config::B_r);
}

template <class Config>
__global__ void __launch_bounds__(128 * Config::n_warpgroups)
    finish_queries(const __grid_constant__ sm90a::Problem<typename Config::Args> problem) {
  using Element = typename Config::dtype;
  constexpr int kThreads = 128 * Config::n_warpgroups;
  const auto& dq = problem.args.dq;
  const auto at = BlockOfQueries<Config, sm90a::Problem<typename Config::Args>>::to_finish(problem);
  // This kernel must not end before the one ahead of it.
  if (blockIdx.x == gridDim.x - 1) ptx::wait_for_kernel_ahead();
  if constexpr (attention::DropsOut<typename Config::Args>)
    clear_queries_before<Element>(problem, at);
  if (!at.exists()) return;
  if (at.sees_keys(problem)) {
    const int first = __ldcg(problem.order.first_key_places + at.sequence);
    const int tiles = min(sm90a::key_blocks_of<Config>(problem, at.sequence),
                          __ldcg(problem.order.counts) - first);
    const int kv_heads = static_cast<int>(problem.args.Hk);
    if (threadIdx.x < 32)
      ptx::wait_for_counter(problem.tiles_done + at.sequence * kv_heads + at.head / problem.group,
                            max(tiles, 0) * attention_backward::sm90a::kWriters<Config>);
    __syncthreads();
  }
  const std::int64_t row = std::int64_t{at.region.first_row} + at.block * Config::B_r;
  const bool hides_keys = flash_prefill_backward::hides_keys(problem, at);
  bool reached = hides_keys && attention_backward::may_be_reached<Config, kThreads>(
                                   problem, FindQueries<Config>::of(problem, at));
  reached |= !attention_backward::sm90a::finish_block<Config, true>(
      problem.dq, at.index, !problem.stores_first || at.sees_keys(problem),
      dq.template as<Element>() + at.region.entry * dq.stride[0] + row * dq.stride[1] +
          at.head * dq.stride[2],
      dq.stride[1], at.region.rows - at.block * Config::B_r, static_cast<int>(problem.args.D),
      problem.args.softmax_scale * attention::keep_scale_of(problem.args));
  if (hides_keys && __syncthreads_or(reached)) {
    ptx::wait_for_kernel_ahead();  // dK and dV may not be there yet
    attention_backward::remake<Config, kThreads, FindQueries<Config>>(problem);
  }
}

template <class Config>
__global__ void __launch_bounds__(32)
    finish_sinks(const __grid_constant__ sm90a::Problem<typename Config::Args> problem) {
  finish_sink<Config>(problem);
}

template <class Config>
__global__ void __launch_bounds__(32)
    finish_slopes(const __grid_constant__ sm90a::Problem<typename Config::Args> problem) {
  finish_slope<Config, 128 * Config::n_warpgroups>(problem);
}

}  // namespace kernelmint::flash_prefill_backward
