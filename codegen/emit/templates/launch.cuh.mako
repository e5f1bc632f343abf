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
% if asks_occupancy:
  CudaLaunch launch = {
      .grid = {},
% for name, value in fields:
      .${name} = ${value},
% endfor
  };
  const ResidentBlocks resident =
      max_resident_blocks<&${family}::${kernel}<Config>>(launch, context);
  if (resident.error != nullptr) return {resident.error};
  launch.grid = ${grid};
  return launch_cuda<&${family}::${kernel}<Config>>(launch, context, args);
% else:
  return launch_cuda<&${family}::${kernel}<Config>>(
      {
          .grid = ${grid},
% for name, value in fields:
          .${name} = ${value},
% endfor
      },
      context, args);
% endif
}

}  // namespace kernelmint
