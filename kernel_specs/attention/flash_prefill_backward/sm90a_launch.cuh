// Launching the kernels, with tensor maps.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "attention/flash_prefill_backward/sm90a_problem.h"
#include "attention/flash_prefill_backward/sm90a_rows.cuh"
#include "attention/sm90a_tensor_maps.cuh"
#include "attention/softcap.h"
#include "cuda_launch.cuh"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using namespace flash_prefill_backward;
  using attention::sm90a::Layout, attention::sm90a::MappedTensor;
  using attention_backward::sm90a::kCountersOfBlock, attention_backward::sm90a::kIsWide;
  using Element = typename Config::dtype;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  const DeviceScope device(context.device);
  if (device.error != nullptr) return {device.error};
  const bool packed_q = args.cu_seqlens_q.data != nullptr;
  const std::int64_t sequences = packed_q ? args.Cq - 1 : args.Nq;
  const bool has_queries = args.Nq * args.H * args.Tq > 0,
             has_keys = args.Nk * args.Hk * args.Tk > 0;
  const std::int64_t query_blocks = sm90a::most_blocks<Config::B_r>(packed_q, args.Tq, sequences);
  const std::int64_t key_blocks =
      sm90a::most_blocks<Config::B_c>(args.cu_seqlens_k.data != nullptr, args.Tk, sequences);
  sm90a::Problem<typename Config::Args> problem{};
  problem.args = args;
  problem.query_blocks = static_cast<int>(query_blocks);
  problem.key_blocks = static_cast<int>(key_blocks);
  problem.group = static_cast<int>(args.H / args.Hk);
  problem.scale_log2 = args.softmax_scale * sm90a::kLog2E;
  problem.sequences = static_cast<int>(sequences);
  problem.cap = attention::usable_cap(args.softcap);
  const bool is_causal = args.window_right >= 0, is_window = is_causal && args.window_left >= 0;
  // Warps of a wide head add dQ themselves, and would wait.
  problem.stores_first = Config::deterministic || (is_window && !kIsWide<Config>);
  problem.from_first = is_causal && problem.stores_first;
  problem.heads_first = is_window || !(Config::deterministic && is_causal);
  // Heads whose tiles are at work at one time: their Q, dO and dQ stay in L2.
  const std::int64_t blocks = std::max(key_blocks, std::int64_t{1});
  problem.section_heads =
      static_cast<int>(std::clamp((context.facts.sm_count + blocks / 2) / blocks, std::int64_t{1},
                                  std::min<std::int64_t>(8, args.Hk)));
  // A map has no empty extent; a tensor with an empty extent is not read.
  const auto encode_blocks = [&](const char* name, MappedTensor& mapped,
                                 const ConstTensorView<4>& tensor, std::int64_t columns,
                                 std::int64_t rows, std::int64_t heads, std::int64_t entries,
                                 int block) {
    if (!has_queries || !has_keys || columns == 0) return LaunchResult{};
    const Layout layout(name, tensor, columns, rows, heads, entries);
    return attention::sm90a::encode_keys<Element>(mapped, layout, block, context.device);
  };
  for (const LaunchResult& result :
       {encode_blocks("q", problem.q, args.q, args.D, args.Tq, args.H, args.Nq, Config::B_r),
        encode_blocks("dout", problem.dout, args.dout, args.Dv, args.Tq, args.H, args.Nq,
                      Config::B_r),
        encode_blocks("k", problem.k, args.k, args.D, args.Tk, args.Hk, args.Nk, Config::B_c),
        encode_blocks("v", problem.v, args.v, args.Dv, args.Tk, args.Hk, args.Nk, Config::B_c)})
    if (result.error != nullptr) return result;
  if (has_queries) {
    const std::int64_t blocks_of_heads = args.H * query_blocks,
                       rows = blocks_of_heads * Config::B_r;
    const Allocation scratch = context.allocate(
        (rows * (Config::padded_head + 2) + (8 + kCountersOfBlock<Config>)*blocks_of_heads) *
        sizeof(float));
    if (scratch.error != nullptr) return {scratch.error};
    problem.dq = static_cast<float*>(scratch.data);
    problem.log_sums = problem.dq + rows * Config::padded_head;
    problem.deltas = problem.log_sums + rows;
    problem.sinks = problem.deltas + rows;
    problem.counters = reinterpret_cast<unsigned*>(problem.sinks + 8 * blocks_of_heads);
    const LaunchResult result = launch_cuda<&prepare_rows<Config>>(
        {.grid = {blocks_of_heads}, .block = {256}}, context, problem);
    if (result.error != nullptr) return result;
  }
  const auto run = [&]<bool kChangesScores>() {
    return launch_cuda<&flash_prefill_backward_sm90a<Config, kChangesScores>>(
        {.grid = {args.Hk * key_blocks},
         .block = {Config::threads},
         .shared_memory = Config::smem_bytes,
         .dependent = has_queries},
        context, problem);
  };
  if (has_keys) {
    const LaunchResult result = problem.cap > 0 || args.alibi_slopes.data != nullptr
                                    ? run.template operator()<true>()
                                    : run.template operator()<false>();
    if (result.error != nullptr) return result;
  }
  if (has_queries) {
    const LaunchResult result = launch_cuda<&finish_queries<Config>>(
        {.grid = {args.H * query_blocks}, .block = {128 * Config::n_warpgroups}, .dependent = true},
        context, problem);
    if (result.error != nullptr) return result;
  }
  if (args.ds_aux.data == nullptr || args.H == 0) return {};
  if (!has_queries) problem.query_blocks = 0;
  return launch_cuda<&finish_sinks<Config>>({.grid = {args.H}, .block = {32}}, context, problem);
}

}  // namespace kernelmint
