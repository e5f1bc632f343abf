#pragma once

#include "launch.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& /*context*/) {
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  const float* w = args.w.template as<const float>();
  double total = 0;
  for (std::int64_t m = 0; m < args.M; ++m) {
    float sum = 0;
    for (std::int64_t n = 0; n < args.N; ++n)
      sum += *args.x.template at<const float>(m, n) * w[m * args.N + n] +
             *args.bias.template at<const float>(n);
    sum *= args.gain * *args.factor.template as<const float>() * (args.turned ? -1 : 1);
    *args.y.template at<float>(m) = sum;
    total += sum;
  }
  *args.total.template at<double>() = total;
  return {};
}

}  // namespace kernelmint
