#pragma once

#include "cuda_launch.cuh"
#include "foreign_axpy/axpy.cuh"
#include "integers.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  static std::atomic<std::uint64_t> devices_ready{0};
  return launch_cuda(&axpy_kernel, Grid{ceil_div(args.N, Config::threads)}, Config::threads, 0,
                     args, context, devices_ready);
}

}  // namespace kernelmint
