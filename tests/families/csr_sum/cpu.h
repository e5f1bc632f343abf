#pragma once

#include "launch.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& /*context*/) {
  using T = typename Config::dtype;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  const auto* starts = args.starts.template as<const std::int64_t>();
  for (std::int64_t group = 0; group < args.P - 1; ++group)
    for (std::int64_t d = 0; d < args.D; ++d) {
      T sum = 0;
      for (std::int64_t row = starts[group]; row < starts[group + 1]; ++row) {
        const T value = *args.src.template at<const T>(row, d);
        sum += Config::squared ? value * value : value;
      }
      *args.sums.template at<T>(group, d) = sum;
    }
  return {};
}

}  // namespace kernelmint
