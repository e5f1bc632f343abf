// Upstream's kernels: one for blocks of 32 and 64 elements, and one for larger ones.
#pragma once

#include "bitsandbytes/sm80_launch.cuh"
#include "bnb_quantize.cuh"

namespace kernelmint::bitsandbytes {

template <class Config>
__global__ void bnb_quantize_4bit_sm80(float* code, typename Config::dtype* __restrict__ const A,
                                       float* absmax, unsigned char* out,
                                       float* __restrict__ const rand, const int rand_offset,
                                       const int n) {
  using T = typename Config::dtype;
  constexpr int kData = data_type_of<Config>();
  if constexpr (Config::block <= 64)
    kQuantizeBlockwiseSmall<T, Config::block, kData>(code, A, absmax, out, rand, rand_offset, n);
  else
    kQuantizeBlockwise<T, Config::block, each_thread(Config::block), 0, kData>(
        code, A, absmax, out, rand, rand_offset, n);
}

}  // namespace kernelmint::bitsandbytes

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using namespace bitsandbytes;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  if (args.N == 0) return {};
  constexpr int kThreads = Config::block <= 64 ? 32 : Config::block / each_thread(Config::block);
  constexpr int kElementsOfBlock = Config::block <= 64 ? 64 : Config::block;
  return launch_cuda<&bnb_quantize_4bit_sm80<Config>>(
      {.grid = {ceil_div(args.N, kElementsOfBlock)}, .block = {kThreads}}, context, nullptr,
      upstreams<typename Config::dtype>(args.x), args.absmax.template as<float>(),
      args.codes.template as<u8>(), nullptr, 0, static_cast<int>(args.N));
}

}  // namespace kernelmint
