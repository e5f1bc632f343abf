#pragma once

#include <bit>
#include <type_traits>

#include "dtypes.h"
#include "launch.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& /*context*/) {
  using Stored = typename Config::stored;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  for (std::int64_t m = 0; m < args.M; ++m)
    for (std::int64_t k = 0; k < args.K; ++k) {
      const Stored pair = *args.w.template at<const Stored>(m, k / 2);
      const auto bits = std::bit_cast<u8>(pair);
      const int code = k % 2 == 0 ? bits & 15 : bits >> 4;
      *args.y.template at<float>(m, k) =
          static_cast<float>(code) + *args.bias.template at<const float>(k);
      if (args.back.data != nullptr) *args.back.template at<Stored>(m, k / 2) = pair;
    }
  return {};
}

}  // namespace kernelmint
