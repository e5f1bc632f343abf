#pragma once

#include <type_traits>

#include "launch.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& /*context*/) {
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  const bool is_double = std::is_same_v<typename Config::sums, double>;
  const std::int64_t told[] = {is_double,          Config::width,
                               Config::silu,       Config::channel_last,
                               Config::vectorised, static_cast<std::int64_t>(Config::mode)};
  for (int i = 0; i < 6; ++i) *args.which.template at<std::int64_t>(i) = told[i];
  return {};
}

}  // namespace kernelmint
