#pragma once

#include <cmath>

#include "launch.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& /*context*/) {
  using Args = typename Config::Args;
  using Function = typename Args::function_type;
  const auto& args = *static_cast<const Args*>(pointer);
  const bool up = args.rounding == Args::rounding_type::up;
  if ((args.workspace.squares != nullptr) != (args.function == Function::square))
    return {"the workspace is not there exactly when it is needed"};
  for (std::int64_t m = 0; m < args.M; ++m)
    for (std::int64_t n = 0; n < args.N; ++n) {
      const float x = *args.x.template at<const float>(m, n);
      float* y = args.y.template at<float>(m, n);
      switch (args.function) {
        case Function::identity:
          *y = x;
          break;
        case Function::relu:
          *y = x < 0 ? 0 : x;
          break;
        case Function::square:
          *y = args.workspace.squares[n] = x * x;
          break;
        case Function::auto_:
          *y = up ? std::ceil(x) : std::floor(x);
          break;
      }
    }
  return {};
}

}  // namespace kernelmint
