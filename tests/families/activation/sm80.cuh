#pragma once

#include <cstdint>

namespace kernelmint::activation {

template <class Config>
__global__ void activation_sm80(const typename Config::Args args) {
  using Args = typename Config::Args;
  using Function = typename Args::function_type;
  const bool up = args.rounding == Args::rounding_type::up;
  const std::int64_t step = blockDim.x * gridDim.y;
  for (std::int64_t n = blockIdx.y * blockDim.x + threadIdx.x; n < args.N; n += step) {
    const float x = *args.x.template at<const float>(blockIdx.x, n);
    float y = x;
    if (args.function == Function::relu) y = fmaxf(x, 0);
    if (args.function == Function::square) y = x * x;
    if (args.function == Function::auto_) y = up ? ceilf(x) : floorf(x);
    *args.y.template at<float>(blockIdx.x, n) = y;
  }
}

}  // namespace kernelmint::activation
