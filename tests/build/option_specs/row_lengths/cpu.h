#pragma once

#include <cmath>
#include <cstdint>

#include "launch.h"

namespace kernelmint::row_lengths {
inline namespace KERNELMINT_ISA {

// No configuration is in its name, so kernels of all options would share one copy.
template <class T>
[[gnu::noinline]] T sum_of_squares(const T* x, std::int64_t size) {
  T sum = 0;
  for (std::int64_t i = 0; i < size; ++i) sum += x[i] * x[i];
  return sum;
}

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::row_lengths

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& /*context*/) {
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  for (std::int64_t m = 0; m < args.M; ++m)
    *args.y.template at<float>(m) =
        std::sqrt(row_lengths::sum_of_squares(args.x.template at<const float>(m), args.N));
  return {};
}

}  // namespace kernelmint
