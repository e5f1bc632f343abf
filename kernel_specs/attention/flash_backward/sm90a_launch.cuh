// Launching the kernels, with tensor maps.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "attention/flash_backward/prepare.cuh"
#include "attention/flash_backward/sm90a_problem.h"
#include "attention/flash_backward/sm90a_rows.cuh"
#include "attention/sm90a_backward_sum_maker.cuh"
#include "attention/sm90a_tensor_maps.cuh"
#include "cuda_launch.cuh"

namespace kernelmint {

// The key/value heads of a section where `describe` has too few or too many; or 0. In turn, fewer
// blocks of keys wait if those of many heads are at work, even of more than L2 holds. Under the
// mask, those of one head that is not shared come to a block of queries just in time for their
// turn; of the widest ones those of several would wait.
template <class Config, class Args>
int heads_at_a_time(const flash_backward::sm90a::Problem<Args>& problem, int places) {
  const bool shared = problem.group > 1;
  if (Config::deterministic) {
    if (2 * problem.args.Sq <= problem.args.Sk)
      return std::max(problem.section_heads, flash_backward::heads_for_turns(problem, places));
    if (!Config::causal) return std::max(problem.section_heads, Config::d_head > 192 ? 4 : 8);
    if (!shared && Config::d_head > 192) return 3 * problem.key_blocks < 2 * places ? 2 : 1;
  }
  if (!Config::causal || !shared) return 0;
  // L2 holds the queries of two heads that are shared. This pays if a head has few blocks of keys
  // and there are many heads, so that few multiprocessors end without work.
  const bool few_keys = 5 * problem.key_blocks <= places;
  if (Config::d_head > 64 && few_keys && problem.tiles >= 6 * places) return 2;
  // In turn four heads pay, too, but for wide ones that many heads of queries share.
  if (!Config::deterministic || (Config::d_head > 64 && problem.group > 4)) return 0;
  if (Config::d_head > 192)
    return std::max((3 * places + problem.key_blocks) / (2 * std::max(problem.key_blocks, 1)), 1);
  return problem.key_blocks <= places ? std::max(problem.section_heads, 4) : 0;
}

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using namespace flash_backward::sm90a;
  using Element = typename Config::dtype;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  const DeviceScope device(context.device);
  if (device.error != nullptr) return {device.error};
  const std::int64_t heads = args.B * args.H, kv_heads = args.B * args.Hk;
  const bool has_queries = heads * args.Sq > 0, has_keys = kv_heads * args.Sk > 0;
  const int gpu = context.device;
  Problem<typename Config::Args> problem{flash_backward::describe<Config>(args, context, 1)};
  problem.tiles = static_cast<int>(kv_heads * problem.key_blocks);
  if (const int most = heads_at_a_time<Config>(problem, context.facts.sm_count)) {
    problem.section_heads = most;
    problem.last_section =
        attention_backward::last_section_in_turn(static_cast<int>(kv_heads), most);
    problem.lot = std::numeric_limits<int>::max();
  }
  // The first block of keys of a head stores dQ, and counts its steps, but for the first step, of
  // the last queries; or all blocks count the steps of each block of dQ.
  problem.counters_of_head = Config::deterministic ? problem.query_blocks : 1;
  problem.first_zero =
      (Config::deterministic ? problem.query_blocks : std::max(problem.query_blocks - 1, 0)) *
      Config::B_r;
  // The heads of the first section need D at once, those after it later, if multiprocessors have
  // enough tiles; beside the products of few blocks of keys there is no time for it. An output that
  // has no map is read by the first kernel.
  const bool leaves_sums = flash_backward::kLeavesSums<Config> && has_queries &&
                           problem.last_section > 0 && args.o.stride[1] > 0 &&
                           problem.tiles >= 6 * context.facts.sm_count &&
                           problem.key_blocks >= (Config::causal ? 4 : 2);
  problem.kv_heads_ahead = leaves_sums ? problem.section_heads : static_cast<int>(kv_heads);
  // A map has no empty extent; a tensor with an empty extent is not read.
  const auto encode_blocks = [&](const char* name, MappedTensor& mapped,
                                 const ConstTensorView<4>& tensor, std::int64_t rows,
                                 std::int64_t tensor_heads, int block, int columns = 64) {
    if (!has_queries || !has_keys) return LaunchResult{};
    const Layout layout(name, tensor, args.D, rows, tensor_heads, args.B);
    return encode_keys<Element>(mapped, layout, block, gpu, columns);
  };
  for (const LaunchResult& result :
       {encode_blocks("q", problem.q, args.q, args.Sq, args.H, Config::B_r),
        encode_blocks("dout", problem.dout, args.dout, args.Sq, args.H, Config::B_r),
        encode_blocks("k", problem.k, args.k, args.Sk, args.Hk, Config::B_c,
                      kColumnsOfKeyPanel<Config>),
        encode_blocks("v", problem.v, args.v, args.Sk, args.Hk, Config::B_c)})
    if (result.error != nullptr) return result;
  if (leaves_sums)
    for (const LaunchResult& result :
         {encode_blocks("o", problem.o_rows, args.o, args.Sq, args.H, kRowsOfBox),
          encode_blocks("dout", problem.dout_rows, args.dout, args.Sq, args.H, kRowsOfBox)})
      if (result.error != nullptr) return result;
  if (has_queries) {
    const LaunchResult result = flash_backward::prepare<Config>(problem, context);
    if (result.error != nullptr) return result;
  }
  if (has_keys) {
    std::int64_t blocks = problem.tiles;
    if (Config::persistent && has_queries)
      blocks = std::min<std::int64_t>(blocks, context.facts.sm_count);
    const LaunchResult result = launch_cuda<&flash_backward::flash_backward_sm90a<Config>>(
        {.grid = {blocks},
         .block = {Config::threads},
         .shared_memory = Config::smem_bytes,
         .dependent = has_queries},
        context, problem);
    if (result.error != nullptr) return result;
  }
  if (!has_queries) return {};
  return launch_cuda<&flash_backward::finish_queries<Config>>(
      {.grid = {heads * problem.query_blocks},
       .block = {128 * Config::n_warpgroups},
       .shared_memory = Config::causal ? kRemakeBytes<Config> : 0,
       .dependent = true},
      context, static_cast<const flash_backward::Problem<typename Config::Args>&>(problem));
}

}  // namespace kernelmint
