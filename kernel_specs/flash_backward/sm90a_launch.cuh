// Launching the kernels: tensor maps, scratch memory, and the order of the tiles.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "attention/sm90a_tensor_maps.cuh"
#include "cuda_launch.cuh"
#include "flash_backward/sm90a_problem.h"
#include "flash_backward/sm90a_rows.cuh"
#include "integers.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using namespace flash_backward::sm90a;
  using Element = typename Config::dtype;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  const DeviceScope device(context.device);
  if (device.error != nullptr) return {device.error};
  Problem<typename Config::Args> problem{
      .args = args,
      .query_blocks = static_cast<int>(ceil_div(args.Sq, std::int64_t{Config::B_r})),
      .key_blocks = static_cast<int>(ceil_div(args.Sk, std::int64_t{Config::B_c})),
      .group = static_cast<int>(args.H / args.Hk),
      .offset = static_cast<int>(args.Sk - args.Sq),
      .scale_log2 = args.scale * 1.4426950408889634f};
  const std::int64_t heads = args.B * args.H, kv_heads = args.B * args.Hk;
  const bool has_queries = heads * args.Sq > 0, has_keys = kv_heads * args.Sk > 0;
  const int gpu = context.device;
  // A map has no empty extent; what would have one is not read.
  const auto encode_blocks = [&](const char* name, MappedTensor& mapped,
                                 const ConstTensorView<4>& tensor, std::int64_t rows,
                                 std::int64_t tensor_heads, int block) {
    if (!has_queries || !has_keys) return LaunchResult{};
    const Layout layout(name, tensor, args.D, rows, tensor_heads, args.B);
    return encode_keys<Element>(mapped, layout, block, gpu);
  };
  for (const LaunchResult& result :
       {encode_blocks("q", problem.q, args.q, args.Sq, args.H, Config::B_r),
        encode_blocks("dout", problem.dout, args.dout, args.Sq, args.H, Config::B_r),
        encode_blocks("k", problem.k, args.k, args.Sk, args.Hk, Config::B_c),
        encode_blocks("v", problem.v, args.v, args.Sk, args.Hk, Config::B_c)})
    if (result.error != nullptr) return result;
  const std::int64_t rows = heads * problem.query_blocks * Config::B_r;
  const std::int64_t counters = heads * (Config::deterministic ? problem.query_blocks : 1);
  const Allocation scratch =
      context.allocate((rows * (Config::d_head + 2) + counters) * sizeof(float));
  if (scratch.error != nullptr) return {scratch.error};
  problem.dq = static_cast<float*>(scratch.data);
  problem.log_sums = problem.dq + rows * Config::d_head;
  problem.deltas = problem.log_sums + rows;
  problem.counters = reinterpret_cast<unsigned*>(problem.deltas + rows);
  // As many heads as have their tiles at work at one time: their Q, dO and dQ stay in L2. More than
  // eight, of short sequences, are slower: 0.98 at 1,024 tokens.
  const std::int64_t key_blocks = std::max(problem.key_blocks, 1);
  const std::int64_t at_work = (context.facts.sm_count + key_blocks / 2) / key_blocks;
  problem.section_heads =
      static_cast<int>(std::max(std::min({at_work, std::int64_t{8}, kv_heads}), std::int64_t{1}));
  if (has_queries) {
    const LaunchResult result = launch_cuda<&flash_backward::prepare_rows<Config>>(
        {.grid = {ceil_div(std::int64_t{problem.query_blocks} * Config::B_r, std::int64_t{64}) *
                  heads},
         .block = {256}},
        context, problem);
    if (result.error != nullptr) return result;
  }
  if (has_keys) {
    const LaunchResult result = launch_cuda<&flash_backward::flash_backward_sm90a<Config>>(
        {.grid = {kv_heads * problem.key_blocks},
         .block = {Config::threads},
         .shared_memory = Config::smem_bytes,
         .dependent = has_queries},
        context, problem);
    if (result.error != nullptr) return result;
  }
  if (!has_queries) return {};
  return launch_cuda<&flash_backward::finish_queries<Config>>(
      {.grid = {heads * problem.query_blocks}, .block = {256}, .dependent = true}, context,
      problem);
}

}  // namespace kernelmint
