// Launching the kernels, with tensor maps.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "attention/prefill_backward_describe.cuh"
#include "attention/sm90a_prefill_backward_problem.h"
#include "attention/sm90a_prefill_backward_rows.cuh"
#include "attention/sm90a_tensor_maps.cuh"
#include "cuda_launch.cuh"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using namespace flash_prefill_backward;
  using attention::sm90a::Layout, attention::sm90a::MappedTensor;
  using attention_backward::sm90a::kColumnsOfKeyPanel, attention_backward::sm90a::kRowsOfBox;
  using Element = typename Config::dtype;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  const DeviceScope device(context.device);
  if (device.error != nullptr) return {device.error};
  auto problem = describe<Config, sm90a::Problem<typename Config::Args>>(
      args, context, {.resident_blocks = 1, .stores_first = true});
  const bool has_queries = flash_prefill_backward::has_queries(args),
             has_keys = flash_prefill_backward::has_keys(args);
  // A map has no empty extent; a tensor with an empty extent is not read.
  const auto encode_blocks = [&](const char* name, MappedTensor& mapped,
                                 const ConstTensorView<4>& tensor, std::int64_t columns,
                                 std::int64_t rows, std::int64_t heads, std::int64_t entries,
                                 int block, int boxed_columns = 64) {
    if (!has_queries || !has_keys || columns == 0) return LaunchResult{};
    const Layout layout(name, tensor, columns, rows, heads, entries);
    return attention::sm90a::encode_keys<Element>(mapped, layout, block, context.device,
                                                  boxed_columns);
  };
  for (const LaunchResult& result :
       {encode_blocks("q", problem.q, args.q, args.D, args.Tq, args.H, args.Nq, Config::B_r),
        encode_blocks("dout", problem.dout, args.dout, args.Dv, args.Tq, args.H, args.Nq,
                      Config::B_r),
        encode_blocks("k", problem.k, args.k, args.D, args.Tk, args.Hk, args.Nk, Config::B_c,
                      kColumnsOfKeyPanel<Config>),
        encode_blocks("v", problem.v, args.v, args.Dv, args.Tk, args.Hk, args.Nk, Config::B_c)})
    if (result.error != nullptr) return result;
  std::int64_t blocks = args.Hk * problem.key_blocks;
  problem.tiles = static_cast<int>(blocks);
  problem.multiprocessors = static_cast<int>(context.facts.sm_count);
  // The main kernel makes D, as flash_backward's does, unless more follows from it, or all of dQ
  // has to be zero before.
  const bool leaves_sums = sm90a::AnyLengths<Config, sm90a::Scores::kScaled>::kMakesSums &&
                           has_queries && has_keys && !changes_scores(problem) &&
                           args.ds_aux.data == nullptr && problem.stores_first &&
                           args.o.stride[1] > 0 && problem.tiles >= 6 * problem.multiprocessors &&
                           blocks_seen<Config>(problem) >= 4;
  if (leaves_sums)
    for (const LaunchResult& result :
         {encode_blocks("o", problem.o_rows, args.o, args.Dv, args.Tq, args.H, args.Nq, kRowsOfBox),
          encode_blocks("dout", problem.dout_rows, args.dout, args.Dv, args.Tq, args.H, args.Nq,
                        kRowsOfBox)})
      if (result.error != nullptr) return result;
  if (has_queries) {
    // A list has one number for each key/value head of each sequence, after one for what is taken.
    const std::int64_t done = 1 + problem.sequences * args.Hk;
    const LaunchResult memory =
        allocate<Config>(problem, context, Config::padded_head, 1, 128 * Config::n_warpgroups,
                         (leaves_sums ? 2 : 1) * done,
                         problem.key_blocks + problem.query_blocks + 3 * problem.sequences + 2);
    if (memory.error != nullptr) return memory;
    auto& order = problem.order;
    order.counts = reinterpret_cast<int*>(problem.counters + problem.counter_count);
    order.sequences = order.counts + 2;
    order.first_key_places = order.sequences + problem.sequences;
    order.first_query_places = order.first_key_places + problem.sequences;
    order.key_sequences = order.first_query_places + problem.sequences;
    order.query_sequences = order.key_sequences + problem.key_blocks;
    problem.next_tile = problem.counters + problem.counter_count - done;
    problem.tiles_done = problem.next_tile + 1;
    if (leaves_sums) {
      problem.next_sums = problem.next_tile - done;
      problem.sums_done = problem.next_sums + 1;
    }
    const LaunchResult result = launch_cuda<&prepare_rows<Config>>(
        {.grid = {args.H * (leaves_sums ? problem.sequences : problem.query_blocks)},
         .block = {256},
         .shared_memory = sm90a::kOrderBytes},
        context, problem);
    if (result.error != nullptr) return result;
  }
  const auto run_scores = [&]<sm90a::Scores kScores>() {
    if (sm90a::AnyLengths<Config, kScores>::kPersistent && has_queries)
      blocks = std::min<std::int64_t>(blocks, context.facts.sm_count);
    return launch_cuda<&flash_prefill_backward_sm90a<Config, kScores>>(
        {.grid = {blocks},
         .block = {Config::threads},
         .shared_memory = Config::smem_bytes,
         .dependent = has_queries},
        context, problem);
  };
  const auto run = [&]<bool kChangesScores>() {
    using sm90a::Scores;
    if constexpr (kChangesScores)
      return problem.cap > 0 ? run_scores.template operator()<Scores::kCapped>()
                             : run_scores.template operator()<Scores::kSlanted>();
    else
      return run_scores.template operator()<Scores::kScaled>();
  };
  if (has_keys) {
    const LaunchResult result = run_main<Config>(problem, run);
    if (result.error != nullptr) return result;
  }
  if (has_queries) {
    const LaunchResult result = launch_cuda<&finish_queries<Config>>(
        {.grid = {args.H * problem.query_blocks},
         .block = {128 * Config::n_warpgroups},
         .shared_memory = attention_backward::sm90a::kRemakeBytes<Config>,
         .dependent = has_keys},
        context, problem);
    if (result.error != nullptr) return result;
  }
  if constexpr (attention::GivesSlopes<typename Config::Args>) {
    const LaunchResult result = launch_cuda<&finish_slopes<Config>>(
        {.grid = {args.H * problem.sequences}, .block = {32}}, context, problem);
    if (result.error != nullptr) return result;
  }
  if (args.ds_aux.data == nullptr || args.H == 0) return {};
  if (!has_queries) problem.query_blocks = 0;
  return launch_cuda<&finish_sinks<Config>>({.grid = {args.H}, .block = {32}}, context, problem);
}

}  // namespace kernelmint
