// Launching the kernel: its tensor maps, its grid, and the order of its tiles.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "attention/flash_forward/sm90a_parts.cuh"
#include "attention/flash_forward/sm90a_problem.h"
#include "attention/sm90a_tensor_maps.cuh"
#include "attention/sm90a_tile_counter.cuh"
#include "cuda_launch.cuh"
#include "integers.h"
#include "tensor_map.h"

namespace kernelmint::flash_forward::sm90a {

// Q or O, in boxes of a slab.
template <class Element>
LaunchResult encode_queries(MappedTensor& mapped, Layout layout, const PackedRows& rows,
                            int device) {
  layout.rows.box = rows.queries;
  const auto [heads, stride, _] = layout.heads;
  return encode<Element>(mapped, layout,
                         {{rows.heads, stride, rows.heads},
                          layout.rows,
                          {heads / rows.heads, rows.heads * stride},
                          layout.batch},
                         device);
}

// Heads whose tiles are handed out together: a part of all that keeps the multiprocessors busy, and
// no less than a few MiB of keys and values, which heads may share. No more than the L2 cache holds
// keys and values of; if these are so few that they hardly keep all busy, no more than let each
// block of keys that comes from memory serve several tiles.
template <class Config>
int section_heads(const Problem<typename Config::Args>& problem, std::int64_t multiprocessors) {
  constexpr std::int64_t kLeastBytes = 8 << 20, kCacheBytes = 32 << 20;
  constexpr std::int64_t kTilesOfABlock = 4, kMostTilesOfABlock = 8;
  const auto& args = problem.args;
  const std::int64_t heads = problem.heads * args.B;
  const std::int64_t kv_head_bytes =
      2 * larger(args.Sk, 1) * args.D * static_cast<std::int64_t>(sizeof(typename Config::dtype));
  const auto heads_of = [&](std::int64_t bytes) {
    return larger(bytes / kv_head_bytes, 1) * problem.heads_of_a_group;
  };
  const std::int64_t busy = ceil_div(multiprocessors, std::int64_t{problem.row_blocks});
  const std::int64_t least =
      larger(larger(ceil_div(heads, std::int64_t{Config::sections}), busy), heads_of(kLeastBytes));
  const std::int64_t cached = heads_of(kCacheBytes);
  const std::int64_t most =
      cached >= multiprocessors / kMostTilesOfABlock ? cached : multiprocessors / kTilesOfABlock;
  const std::int64_t sections = ceil_div(heads, smaller(smaller(least, most), heads));
  return static_cast<int>(ceil_div(heads, sections));  // sections of one size
}

// Chooses the tiles that are split: the tiles that are left when all multiprocessors have had the
// same number, if splitting ends sooner. Under a causal mask tiles are of different lengths, and
// the short tiles that come last fill the gaps, unless each head has one tile.
template <class Config>
KeySplit split_keys(const Problem<typename Config::Args>& problem, std::int64_t multiprocessors) {
  // The time of the second kernel, in blocks of keys; it takes some microseconds.
  constexpr std::int64_t kMerging = ceil_div(
      std::int64_t{4} * 128 * 128 * 128, std::int64_t{Config::B_r} * Config::B_c * Config::d_head);
  constexpr std::int64_t kLeastShare = 2, kMostParts = 32;
  const std::int64_t tiles = std::int64_t{problem.row_blocks} * problem.heads * problem.args.B;
  const std::int64_t blocks = ceil_div(larger(problem.args.Sk, 1), std::int64_t{Config::B_c});
  const std::int64_t rest = tiles % multiprocessors;
  const std::int64_t share = larger(
      larger(ceil_div(rest * blocks, multiprocessors), ceil_div(blocks, kMostParts)), kLeastShare);
  KeySplit split{.whole_tiles = static_cast<int>(tiles)};
  const bool are_alike = !Config::causal || problem.row_blocks == 1;
  // A trace is of whole tiles.
  if (rest == 0 || !are_alike || share + kMerging > blocks || Config::trace) return split;
  split.whole_tiles -= static_cast<int>(rest);
  split.tiles = static_cast<int>(rest);
  split.blocks = static_cast<int>(blocks);
  split.share = static_cast<int>(share);
  return split;
}

}  // namespace kernelmint::flash_forward::sm90a

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using namespace flash_forward::sm90a;
  using Element = typename Config::dtype;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  const DeviceScope device(context.device);
  if (device.error != nullptr) return {device.error};
  // Heads whose queries are one and the same have no stride, and a trace is of single heads.
  const bool packable = args.q.stride[2] != 0 && !Config::trace;
  const PackedRows rows(
      heads_to_pack(args.Sq, packable ? args.H / args.Hk : 1, Config::n_warpgroups));
  Problem<typename Config::Args> problem{
      .args = args,
      .rows = rows,
      .row_blocks =
          static_cast<int>(ceil_div(args.Sq, std::int64_t{Config::n_warpgroups} * rows.queries)),
      .heads = static_cast<int>(args.H / rows.heads),
      .heads_of_a_group = static_cast<int>(args.H / args.Hk / rows.heads)};
  const Layout q("q", args.q, args.D, args.Sq, args.H, args.B);
  const Layout o("o", args.o, args.D, args.Sq, args.H, args.B);
  // A map has no empty extent. Without keys any memory will do: it is not read.
  const auto keys = [&](const char* name, const ConstTensorView<4>& tensor) {
    return args.Sk > 0 ? Layout(name, tensor, args.D, args.Sk, args.Hk, args.B)
                       : Layout(name, args.q, args.D, 1, 1, 1);
  };
  const int gpu = context.device;
  for (const LaunchResult& result :
       {encode_queries<Element>(problem.q, q, rows, gpu),
        encode_keys<Element>(problem.k, keys("k", args.k), Config::B_c, gpu),
        encode_keys<Element>(problem.v, keys("v", args.v), Config::B_c, gpu),
        encode_queries<Element>(problem.o, o, rows, gpu)})
    if (result.error != nullptr) return result;
  if (Config::dynamic) {
    const cudaError_t status = find_counter(context, problem.counter);
    if (status != cudaSuccess) return {cudaGetErrorString(status)};
  }
  const std::int64_t multiprocessors = context.facts.sm_count;
  problem.section_heads = section_heads<Config>(problem, multiprocessors);
  problem.split = split_keys<Config>(problem, multiprocessors);
  const KeySplit& split = problem.split;
  std::int64_t thread_blocks = smaller(split.whole_tiles, multiprocessors);
  Allocation parts;
  if (split.tiles > 0) {
    const std::int64_t sharing =
        ceil_div(std::int64_t{split.tiles} * split.blocks, std::int64_t{split.share});
    thread_blocks = larger(thread_blocks, sharing);
    parts = context.allocate(2 * sharing * Parts<Config>::kFloat4s * sizeof(float4));
    if (parts.error != nullptr) return {parts.error};
    problem.split.parts = static_cast<float4*>(parts.data);
  }
  const LaunchResult result = launch_cuda<&flash_forward::flash_forward_sm90a<Config>>(
      {.grid = {thread_blocks}, .block = {Config::threads}, .shared_memory = Config::smem_bytes},
      context, problem);
  if (split.tiles == 0 || result.error != nullptr) return result;
  return launch_cuda<&flash_forward::sm90a::merge_parts<Config>>(
      {.grid = {split.tiles, Config::n_warpgroups, Config::d_head / 32},
       .block = {128},
       .dependent = true},
      context, problem);
}

}  // namespace kernelmint
