// Upstream's kernel, with a table.
#pragma once

#include "bitsandbytes/sm80_launch.cuh"
#include "bnb_quantize.cuh"

namespace kernelmint::bitsandbytes {

template <class Config>
__global__ void bnb_quantize_8bit_sm80(float* code, typename Config::dtype* __restrict__ const A,
                                       float* absmax, unsigned char* out,
                                       float* __restrict__ const rand, const int rand_offset,
                                       const int n) {
  kQuantizeBlockwise<typename Config::dtype, Config::block, each_thread(Config::block), 0,
                     General8bit>(code, A, absmax, out, rand, rand_offset, n);
}

}  // namespace kernelmint::bitsandbytes

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using namespace bitsandbytes;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  if (args.N == 0) return {};
  return launch_cuda<&bnb_quantize_8bit_sm80<Config>>(
      {.grid = {ceil_div(args.N, Config::block)},
       .block = {Config::block / each_thread(Config::block)}},
      context, upstreams<float>(args.code), upstreams<typename Config::dtype>(args.x),
      args.absmax.template as<float>(), args.codes.template as<u8>(), nullptr, 0,
      static_cast<int>(args.N));
}

}  // namespace kernelmint
