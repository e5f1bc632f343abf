// Launching the kernels.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "attention/prefill_backward_describe.cuh"
#include "cuda_launch.cuh"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using namespace flash_prefill_backward;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  const DeviceScope device(context.device);
  if (device.error != nullptr) return {device.error};
  // All add to zeros; or dQ is stored once and then added to in turn, where fewer blocks of keys
  // wait if those of many heads are at work.
  auto problem = describe<Config, Problem<typename Config::Args>>(
      args, context, {.resident_blocks = Config::resident_blocks, .stores_first = false});
  if (Config::deterministic)
    problem.section_heads = static_cast<int>(std::min(args.Hk, std::int64_t{16}));
  if (has_queries(args)) {
    const LaunchResult memory =
        allocate<Config>(problem, context, Config::d_head, 1, Config::threads);
    if (memory.error != nullptr) return memory;
    const LaunchResult result = launch_cuda<&sm80::prepare_rows<Config>>(
        {.grid = {args.H * problem.query_blocks}, .block = {256}}, context, problem);
    if (result.error != nullptr) return result;
  }
  const auto run = [&]<bool kChangesScores>() {
    return launch_cuda<&sm80::flash_prefill_backward_sm80<Config, kChangesScores>>(
        {.grid = {args.Hk * problem.key_blocks},
         .block = {Config::threads},
         .shared_memory = Config::smem_bytes,
         .dependent = has_queries(args)},
        context, problem);
  };
  if (has_keys(args)) {
    const LaunchResult result = run_main<Config>(problem, run);
    if (result.error != nullptr) return result;
  }
  if (has_queries(args)) {
    const LaunchResult result = launch_cuda<&sm80::finish_queries<Config>>(
        {.grid = {args.H * problem.query_blocks},
         .block = {Config::threads},
         .shared_memory = Config::B_r * Config::d_head * 2,
         .dependent = true},
        context, problem);
    if (result.error != nullptr) return result;
  }
  if constexpr (attention::GivesSlopes<typename Config::Args>) {
    const LaunchResult result = launch_cuda<&sm80::finish_slopes<Config>>(
        {.grid = {args.H * problem.sequences}, .block = {32}}, context, problem);
    if (result.error != nullptr) return result;
  }
  if (args.ds_aux.data == nullptr || args.H == 0) return {};
  if (!has_queries(args)) problem.query_blocks = 0;
  return launch_cuda<&sm80::finish_sinks<Config>>({.grid = {args.H}, .block = {32}}, context,
                                                  problem);
}

}  // namespace kernelmint
