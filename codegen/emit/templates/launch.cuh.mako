#pragma once

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
  return launch_cuda<&${family}::${kernel}<Config>>(
      {
% for name, value in fields:
          .${name} = ${value},
% endfor
      },
      context, args);
}

}  // namespace kernelmint
