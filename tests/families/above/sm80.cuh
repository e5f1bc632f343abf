#pragma once

#include "above/above.h"

namespace kernelmint::above {

template <class Config>
__global__ void above_sm80(const typename Config::Args args) {
  if (!select<Config>(args)) *args.count.template as<std::int32_t>() = -1;
}

}  // namespace kernelmint::above
