#pragma once

#include "launch.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& /*context*/) {
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  const auto* x = args.x.template as<const typename Config::source>();
  auto* values = args.values.template as<typename Config::dtype>();
  std::int32_t count = 0;
  for (std::int64_t i = 0; i < args.N; ++i)
    if (x[i] > args.threshold && count < args.most) values[count++] = x[i];
  *args.count.template as<std::int32_t>() = count;
  return {};
}

}  // namespace kernelmint
