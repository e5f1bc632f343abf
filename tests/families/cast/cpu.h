// Whole vectors between f32 and 8-bit floats; what is left, and integers, one by one.
#pragma once

#include "cpu_convert.h"
#include "launch.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& /*context*/) {
  using Source = typename Config::source;
  using Result = typename Config::result;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  const Source* x = args.x.template as<const Source>();
  Result* y = args.y.template as<Result>();
  std::int64_t i = 0;
  if constexpr (sizeof(Source) + sizeof(Result) == 5)
    for (; i + cpu::kLanes <= args.N; i += cpu::kLanes) cpu::store(y + i, cpu::load(x + i));
  for (; i < args.N; ++i) y[i] = static_cast<Result>(x[i]);
  return {};
}

}  // namespace kernelmint
