#pragma once

#include "ptx/spilling.cuh"

namespace kernelmint::row_lengths {

// A thread has a row.
template <class Config>
__global__ void __launch_bounds__(128) row_lengths_sm80(const typename Config::Args args) {
  if constexpr (Config::spill_shared) ptx::spill_into_shared_memory();
  const std::int64_t m = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x;
  if (m >= args.M) return;
  const float* x = args.x.template at<const float>(m);
  float sums[Config::held] = {};
  std::int64_t n = 0;
  for (; n + Config::held <= args.N; n += Config::held)
#pragma unroll
    for (int i = 0; i < Config::held; ++i) sums[i] += x[n + i] * x[n + i];
  float sum = 0;
  for (; n < args.N; ++n) sum += x[n] * x[n];
#pragma unroll
  for (int i = 0; i < Config::held; ++i) sum += sums[i];
  *args.y.template at<float>(m) = sqrtf(sum);
}

}  // namespace kernelmint::row_lengths
