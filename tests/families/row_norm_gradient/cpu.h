#pragma once

#include "launch.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& /*context*/) {
  using T = typename Config::dtype;
  using Args = typename Config::Args;
  const auto& args = *static_cast<const Args*>(pointer);
  for (std::int64_t m = 0; m < args.M; ++m) {
    const double scale = *args.scale.template at<const double>(m);
    const auto x = [&](std::int64_t n) -> double { return *args.x.template at<const T>(m, n); };
    const auto weight = [&](std::int64_t n) -> double {
      return *args.weight.template at<const T>(n) + Config::one_more;
    };
    const auto dy = [&](std::int64_t n) -> double {
      const bool is_cut =
          args.activation == Args::activation_type::relu && *args.y.template at<const T>(m, n) <= 0;
      return *args.dy.template at<const T>(m, n) * (is_cut ? args.slope : 1.0);
    };
    double dot = 0;
    for (std::int64_t n = 0; n < args.N; ++n) {
      dot += dy(n) * weight(n) * x(n);
      if (args.dweight.data != nullptr)
        *args.dweight.template at<double>(n) += dy(n) * x(n) * scale;
      if (args.dbias.data != nullptr) *args.dbias.template at<double>(n) += dy(n);
    }
    if (args.dx.data == nullptr) continue;
    // scale is gain / sqrt(mean(x^2) + eps), so its derivative by x is -scale^3 x / (N gain^2).
    const double factor =
        scale * scale * scale / (static_cast<double>(args.N) * args.gain * args.gain);
    for (std::int64_t n = 0; n < args.N; ++n)
      *args.dx.template at<T>(m, n) =
          static_cast<T>(dy(n) * weight(n) * scale - dot * x(n) * factor);
  }
  return {};
}

}  // namespace kernelmint
