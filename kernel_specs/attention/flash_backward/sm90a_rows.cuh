// The kernel after the main one: dQ as a tensor.
#pragma once

#include <cstdint>

#include "attention/flash_backward/hidden_values.cuh"
#include "attention/flash_backward/problem.h"
#include "attention/sm90a_backward_finish.cuh"
#include "ptx/atomic.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/math.cuh"
#include "register_tile.cuh"

namespace kernelmint::flash_backward {

// dQ as a tensor; and gradients that hidden values have reached. A head's dQ is finished when its
// own tiles are done, while multiprocessors that have no more tiles wait for those of other heads.
template <class Config>
__global__ void __launch_bounds__(128 * Config::n_warpgroups)
    finish_queries(const __grid_constant__ Problem<typename Config::Args> problem) {
  using Element = typename Config::dtype;
  constexpr int kThreads = 128 * Config::n_warpgroups;
  const auto& args = problem.args;
  const int block = static_cast<int>(blockIdx.x) % problem.query_blocks;
  const int heads = static_cast<int>(blockIdx.x) / problem.query_blocks;
  const int head = heads % static_cast<int>(args.H), batch = heads / static_cast<int>(args.H);
  const std::int64_t first = std::int64_t{block} * Config::B_r;
  const bool sees_keys = args.Sk > 0 && block >= first_query_block<Config>(problem, 0);
  if (sees_keys) {
    const int kv_heads = static_cast<int>(args.Hk);
    if (threadIdx.x < 32)
      ptx::wait_for_counter(problem.tiles_done + batch * kv_heads + head / problem.group,
                            problem.key_blocks * attention_backward::sm90a::kWriters<Config>);
    __syncthreads();
  }
  const bool hides_keys = Config::causal && sees_keys;
  bool reached = hides_keys && attention_backward::may_be_reached<Config, kThreads>(
                                   problem, FindQueries<Config>()(problem));
  reached |= !attention_backward::sm90a::finish_block<Config, false>(
      problem.dq, block_index(problem, batch, head, block), sees_keys,
      args.dq.template as<Element>() + batch * args.dq.stride[0] + head * args.dq.stride[2] +
          first * args.dq.stride[1],
      args.dq.stride[1], args.Sq - first, Config::d_head, args.scale);
  const bool remakes = hides_keys && __syncthreads_or(reached);
  // dK and dV may not be there yet; and this kernel must not end before the one ahead of it.
  if (remakes || blockIdx.x == gridDim.x - 1) ptx::wait_for_kernel_ahead();
  if (remakes) attention_backward::remake<Config, kThreads, FindQueries<Config>>(problem);
}

}  // namespace kernelmint::flash_backward
