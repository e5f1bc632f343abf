#pragma once

#include "cuda_launch.cuh"
#include "foreign_axpy/axpy.cuh"
#include "integers.h"
#include "plain.cuh"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  static_assert(&fill != nullptr);  // both shards have it
  return launch_cuda<&axpy_kernel>(
      {.grid = {ceil_div(args.N, Config::threads)}, .block = {Config::threads}}, context, args);
}

}  // namespace kernelmint
