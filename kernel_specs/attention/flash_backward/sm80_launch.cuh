// Launching the kernels.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "attention/flash_backward/prepare.cuh"
#include "attention/flash_backward/sm80_finish.cuh"
#include "cuda_launch.cuh"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  const DeviceScope device(context.device);
  if (device.error != nullptr) return {device.error};
  const bool has_queries = args.B * args.H * args.Sq > 0, has_keys = args.B * args.Hk * args.Sk > 0;
  auto problem = flash_backward::describe<Config>(args, context, Config::resident_blocks);
  if constexpr (Config::deterministic) {
    const int places = context.facts.sm_count * Config::resident_blocks;
    problem.section_heads =
        std::max({problem.section_heads, 8, flash_backward::heads_for_turns(problem, places)});
    problem.last_section = attention_backward::last_section_in_turn(
        static_cast<int>(args.B * args.Hk), problem.section_heads);
    problem.lot = std::numeric_limits<int>::max();
  }
  // All add to zeros; or dQ is stored once and then added to in turn.
  problem.counters_of_head = Config::deterministic ? problem.query_blocks : 0;
  problem.first_zero = Config::deterministic ? problem.query_blocks * Config::B_r : 0;
  if (has_queries) {
    const LaunchResult result = flash_backward::prepare<Config>(problem, context);
    if (result.error != nullptr) return result;
  }
  if (has_keys) {
    const LaunchResult result = launch_cuda<&flash_backward::flash_backward_sm80<Config>>(
        {.grid = {args.B * args.Hk * problem.key_blocks},
         .block = {Config::threads},
         .shared_memory = Config::smem_bytes,
         .dependent = has_queries},
        context, problem);
    if (result.error != nullptr) return result;
  }
  if (!has_queries) return {};
  return launch_cuda<&flash_backward::sm80::finish_queries<Config>>(
      {.grid = {args.B * args.H * problem.query_blocks},
       .block = {Config::threads},
       .shared_memory = Config::B_r * Config::d_head * 2,
       .dependent = true},
      context, problem);
}

}  // namespace kernelmint
