// Upstream's kernel, with a table.
#pragma once

#include "bitsandbytes/sm80_launch.cuh"
#include "bnb_dequantize.cuh"

namespace kernelmint::bitsandbytes {

template <class Config>
__global__ void bnb_dequantize_8bit_sm80(float* code, unsigned char* A, float* absmax,
                                         typename Config::dtype* out, const int blocksize,
                                         const int n) {
  kDequantizeBlockwise<typename Config::dtype, 512, 64, 8, General8bit>(code, A, absmax, out,
                                                                        blocksize, n);
}

}  // namespace kernelmint::bitsandbytes

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using namespace bitsandbytes;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  if (args.N == 0) return {};
  return launch_cuda<&bnb_dequantize_8bit_sm80<Config>>(
      {.grid = {ceil_div(args.N, 512)}, .block = {64}}, context, upstreams<float>(args.code),
      upstreams<u8>(args.codes), upstreams<float>(args.absmax),
      args.y.template as<typename Config::dtype>(), static_cast<int>(args.blocksize),
      static_cast<int>(args.N));
}

}  // namespace kernelmint
