// A block counts in shared memory, as much as there are bins; the last block writes what all found.
#pragma once

#include <cstdint>

#include "dtypes.h"

namespace kernelmint::histogram {

template <class Config>
__global__ void __launch_bounds__(Config::threads)
    histogram_sm80(const typename Config::Args args) {
  extern __shared__ i32 counted[];  // [bins]
  const int bins = static_cast<int>(args.bins);
  for (int bin = threadIdx.x; bin < bins; bin += Config::threads) counted[bin] = 0;
  __syncthreads();
  for (std::int64_t i = blockIdx.x * std::int64_t{Config::threads} + threadIdx.x; i < args.N;
       i += gridDim.x * std::int64_t{Config::threads}) {
    const i32 value = *args.x.template at<const i32>(i);
    if (value >= 0 && value < bins) atomicAdd(&counted[value], 1);
  }
  __syncthreads();
  for (int bin = threadIdx.x; bin < bins; bin += Config::threads)
    if (counted[bin] != 0) atomicAdd(&args.workspace.total[bin], counted[bin]);
  __threadfence();
  __syncthreads();
  __shared__ bool is_last;
  if (threadIdx.x == 0) is_last = atomicAdd(args.workspace.tickets, 1) == gridDim.x - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  for (int bin = threadIdx.x; bin < bins; bin += Config::threads)
    for (int copy = 0; copy < Config::copies; ++copy)
      args.counts.template as<i32>()[copy * bins + bin] = args.workspace.total[bin];
}

}  // namespace kernelmint::histogram
