// The kernels before and after the main one.
#pragma once

#include <cstdint>

#include "attention/prefill_backward_hidden_values.cuh"
#include "attention/prefill_backward_rows.cuh"
#include "attention/sm90a_backward_finish.cuh"
#include "attention/sm90a_prefill_backward_problem.h"
#include "ptx/dependent_launch.cuh"

namespace kernelmint::flash_prefill_backward {

template <class Config>
__global__ void __launch_bounds__(256)
    prepare_rows(const __grid_constant__ sm90a::Problem<typename Config::Args> problem) {
  prepare_block<Config, attention_backward::sm90a::kCountersOfBlock<Config>>(problem);
}

template <class Config>
__global__ void __launch_bounds__(128 * Config::n_warpgroups)
    finish_queries(const __grid_constant__ sm90a::Problem<typename Config::Args> problem) {
  using Element = typename Config::dtype;
  constexpr int kThreads = 128 * Config::n_warpgroups;
  ptx::wait_for_kernel_ahead();
  const auto& dq = problem.args.dq;
  const BlockOfQueries<Config, sm90a::Problem<typename Config::Args>> at(problem);
  if constexpr (attention::DropsOut<typename Config::Args>)
    clear_queries_before<Element>(problem, at);
  if (!at.exists()) return;
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
  if (hides_keys && __syncthreads_or(reached))
    attention_backward::remake<Config, kThreads, FindQueries<Config>>(problem);
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
