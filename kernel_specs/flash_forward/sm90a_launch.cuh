// Launching the kernel: its tensor maps, its grid, and the order of its tiles.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cuda_launch.cuh"
#include "flash_forward/sm90a_problem.h"
#include "integers.h"
#include "launch_counters.cuh"
#include "tensor_map.h"

namespace kernelmint::flash_forward::sm90a {

inline constexpr std::size_t kCounters = 1 << 16;
static __device__ TileCounter counters[kCounters];

template <class Element, class Memory>
LaunchResult encode(MappedTensor& mapped, const TensorView<4, Memory>& tensor, std::int64_t D,
                    std::int64_t S, std::int64_t H, std::int64_t B, int rows) {
  const auto [batch_stride, row_stride, head_stride, _] = tensor.stride;
  if (row_stride == 0 && S > 1)
    return {
        "a tensor map has no stride of 0 along the sequence: copy the expanded tensor, "
        "tensor.contiguous()"};
  mapped.head_step = head_stride != 0;
  mapped.batch_step = batch_stride != 0;
  return encode_tensor_map<Element>(mapped.map, tensor.data, D,
                                    {{S, row_stride},
                                     {head_stride != 0 ? H : 1, head_stride},
                                     {batch_stride != 0 ? B : 1, batch_stride}},
                                    rows);
}

// Where tiles are taken in turn by all thread blocks. Without a counter, when graphs hold as many
// launches as there are counters, the order is fixed: slower for causal masks, else the same.
inline cudaError_t find_counter(const LaunchContext& context, TileCounter*& counter) {
  static LaunchCounters owners(kCounters);
  int index = -1;
  void* first = nullptr;
  cudaError_t status = owners.index_for(static_cast<cudaStream_t>(context.stream), index);
  if (status == cudaSuccess) {
    const RelaxedCapture relaxed;  // the address may have to be loaded first
    status = cudaGetSymbolAddress(&first, counters);
  }
  counter = index < 0 ? nullptr : static_cast<TileCounter*>(first) + index;
  return status;
}

// Heads whose tiles are handed out together: a part of all that keeps the multiprocessors busy, and
// no less than a few MiB of keys and values, which heads may share. No more than the L2 cache holds
// keys and values of, or than let each block of keys that comes from memory serve several tiles.
template <class Config>
int section_heads(const typename Config::Args& args, std::int64_t multiprocessors) {
  constexpr std::int64_t kLeastBytes = 8 << 20, kCacheBytes = 32 << 20;
  constexpr std::int64_t kTilesOfABlock = 4;
  const std::int64_t heads = args.H * args.B;
  const std::int64_t kv_head_bytes = 2 * std::max<std::int64_t>(args.Sk, 1) * args.D *
                                     static_cast<std::int64_t>(sizeof(typename Config::dtype));
  const auto heads_of = [&](std::int64_t bytes) {
    return std::max<std::int64_t>(bytes / kv_head_bytes, 1) * (args.H / args.Hk);
  };
  const std::int64_t busy = ceil_div(multiprocessors, ceil_div(args.Sq, Config::B_r));
  const std::int64_t least =
      std::max({ceil_div(heads, std::int64_t{Config::sections}), busy, heads_of(kLeastBytes)});
  const std::int64_t most = std::max(heads_of(kCacheBytes), multiprocessors / kTilesOfABlock);
  const std::int64_t sections = ceil_div(heads, std::min({least, most, heads}));
  return static_cast<int>(ceil_div(heads, sections));  // sections of one size
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
  Problem<typename Config::Args> problem{.args = args};
  // A map has no empty extent. Without keys any memory will do: nobody sees what is in it.
  const bool any_keys = args.Sk > 0;
  const auto encode_keys = [&](MappedTensor& map, const ConstTensorView<4>& tensor) {
    return any_keys ? encode<Element>(map, tensor, args.D, args.Sk, args.Hk, args.B, Config::B_c)
                    : encode<Element>(map, args.q, args.D, 1, 1, 1, Config::B_c);
  };
  for (const LaunchResult& result :
       {encode<Element>(problem.q, args.q, args.D, args.Sq, args.H, args.B, 64),
        encode_keys(problem.k, args.k), encode_keys(problem.v, args.v),
        encode<Element>(problem.o, args.o, args.D, args.Sq, args.H, args.B, 64)})
    if (result.error != nullptr) return result;
  int multiprocessors = 0;
  cudaError_t status =
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, context.device);
  if (status == cudaSuccess && Config::dynamic) status = find_counter(context, problem.counter);
  if (status != cudaSuccess) return {cudaGetErrorString(status)};
  problem.section_heads = section_heads<Config>(args, multiprocessors);
  const std::int64_t tiles = ceil_div(args.Sq, Config::B_r) * args.H * args.B;
  return launch_cuda<&flash_forward::flash_forward_sm90a<Config>>(
      {.grid = {std::min<std::int64_t>(tiles, multiprocessors)},
       .block = {Config::threads},
       .shared_memory = Config::smem_bytes},
      context, problem);
}

}  // namespace kernelmint
