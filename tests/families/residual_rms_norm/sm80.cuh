// A block takes a row.
#pragma once

#include <cstdint>

#include "dtypes.h"

namespace kernelmint::residual_rms_norm {

template <class Config>
__global__ void __launch_bounds__(Config::threads)
    residual_rms_norm_sm80(const typename Config::Args args) {
  using T = typename Config::dtype;
  T* x = args.x.template at<T>(blockIdx.x);
  T* residual = args.residual.template at<T>(blockIdx.x);
  const T* weight = args.weight.template as<const T>();
  float squares = 0;
  for (std::int64_t i = threadIdx.x; i < args.N; i += Config::threads) {
    const float sum = static_cast<float>(x[i]) + static_cast<float>(residual[i]);
    residual[i] = static_cast<T>(sum);
    squares += sum * sum;
  }
  __shared__ float of_warp[Config::threads / 32];
  for (int lanes = 16; lanes > 0; lanes /= 2)
    squares += __shfl_xor_sync(0xffffffff, squares, lanes);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = squares;
  __syncthreads();
  float total = 0;
  for (const float part : of_warp) total += part;
  const float scale = rsqrtf(total / static_cast<float>(args.N) + args.eps);
  for (std::int64_t i = threadIdx.x; i < args.N; i += Config::threads)
    x[i] = static_cast<T>(static_cast<float>(residual[i]) * scale * static_cast<float>(weight[i]));
}

}  // namespace kernelmint::residual_rms_norm
