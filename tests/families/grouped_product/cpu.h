// The matrices of a group are multiplied one after another, on the caller's thread.
#pragma once

#include <cstdint>

#include "launch.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext&) {
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  std::int64_t count = 0;
  for (const auto& number : args.counts) count += *number.template as<const std::int64_t>();
  for (std::int64_t g = 0; g < args.G; ++g) {
    const auto &a = args.a[g], &b = args.b[g], &c = args.c[g];
    float sum = 0;
    for (std::int64_t m = 0; m < c.extent[0]; ++m)
      for (std::int64_t n = 0; n < c.extent[1]; ++n) {
        float product = 0;
        for (std::int64_t k = 0; k < b.extent[0]; ++k)
          product +=
              (*a.template at<const float>(m, 2 * k) + *a.template at<const float>(m, 2 * k + 1)) *
              *b.template at<const float>(k, n);
        *c.template at<float>(m, n) = product * *args.scale.template at<const float>(g);
        sum += *c.template at<float>(m, n);
      }
    for (int i = 0; i < args.copies[1]; ++i)
      *args.sums.template at<float>(g * args.copies[1] + i) = sum + static_cast<float>(count);
  }
  return {};
}

}  // namespace kernelmint
