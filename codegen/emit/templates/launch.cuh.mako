#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "arithmetic.h"
#include "cuda_launch.cuh"
#include "${header}"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  static std::atomic<std::uint64_t> devices_ready{0};
  return launch_cuda(&${family}::${kernel}<Config>, Grid{${", ".join(grid)}},
                     ${block}, ${shared_memory}, args, context, devices_ready);
}

}  // namespace kernelmint
