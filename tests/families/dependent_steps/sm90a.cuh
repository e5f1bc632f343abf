// Lets the next step start at once, and waits for the one ahead before it touches what that does.
#pragma once

#include <cstdint>

#include "ptx/dependent_launch.cuh"

namespace kernelmint::dependent_steps {

template <class Config>
__global__ void __launch_bounds__(Config::threads)
    dependent_steps_sm90a(const typename Config::Args args) {
  ptx::let_next_kernel_start();
  const std::int64_t i = blockIdx.x * std::int64_t{Config::threads} + threadIdx.x;
  ptx::wait_for_kernel_ahead();
  if (i < args.N)
    *args.y.template at<float>(i) = *args.x.template at<const float>((i + 1) % args.N) + 1;
}

}  // namespace kernelmint::dependent_steps
