// A warp takes a segment.
#pragma once

#include "cuda_launch.cuh"
#include "segment_sums/segments.h"

namespace kernelmint::segment_sums {

template <class Config>
__global__ void segment_sums_sm80(const typename Config::Args args, const Segments segments) {
  float sum = 0;
  for (std::int64_t i = segments.begin[blockIdx.x] + threadIdx.x;
       i < segments.begin[blockIdx.x + 1]; i += 32)
    sum += *args.x.template at<const float>(i);
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffff, sum, lanes);
  if (threadIdx.x == 0) *args.y.template at<float>(blockIdx.x) = sum;
}

}  // namespace kernelmint::segment_sums

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  segment_sums::Segments segments;
  const LaunchResult found = segment_sums::find_segments(args, segments);
  if (found.error != nullptr) return found;
  return launch_cuda<&segment_sums::segment_sums_sm80<Config>>({.grid = {args.S}, .block = {32}},
                                                               context, args, segments);
}

}  // namespace kernelmint
