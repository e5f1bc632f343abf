#pragma once

#include <cmath>

#include "launch.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& /*context*/) {
  using T = typename Config::dtype;
  using Args = typename Config::Args;
  const auto& args = *static_cast<const Args*>(pointer);
  for (std::int64_t m = 0; m < args.M; ++m) {
    double squares = 1e-6;
    for (std::int64_t n = 0; n < args.N; ++n) {
      const double x = *args.x.template at<const T>(m, n);
      squares += x * x / static_cast<double>(args.N);
    }
    const double scale = args.gain / std::sqrt(squares);
    std::int64_t positive = 0;
    for (std::int64_t n = 0; n < args.N; ++n) {
      double y = *args.x.template at<const T>(m, n) * scale *
                 (*args.weight.template at<const T>(n) + Config::one_more);
      if (args.bias.data != nullptr) y += *args.bias.template at<const T>(n);
      positive += y > 0;
      if (args.activation == Args::activation_type::relu && y < 0) y = 0;
      *args.y.template at<T>(m, n) = static_cast<T>(y);
    }
    if (args.scale.data != nullptr) *args.scale.template at<double>(m) = scale;
    if (args.positive.data != nullptr) *args.positive.template at<std::int64_t>(m) = positive;
  }
  return {};
}

}  // namespace kernelmint
