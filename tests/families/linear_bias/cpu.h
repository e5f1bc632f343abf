// A task takes a row.
#pragma once

#include <cmath>

#include "launch.h"
#include "parallel.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  const bool has_gates = args.gates.data != nullptr, has_bias = args.bias.data != nullptr;
  if (has_gates != (args.G != 0) || has_gates != (args.gates.stride[0] != 0 || args.M == 0))
    return {"what is absent is not null with strides and extents of 0"};
  if ((args.workspace.sums != nullptr) != (args.norms.data != nullptr && has_bias))
    return {"the workspace is not there exactly when it is needed"};
  parallel_for(args.M, context.num_threads, [&](std::int64_t m, int /*worker*/) {
    const float* x = args.x.template at<const float>(m);
    float squares = 0;
    for (std::int64_t n = 0; n < args.N; ++n) {
      const float* w = args.w.template at<const float>(n);
      float sum = has_bias ? *args.bias.template at<const float>(n) : 0;
      for (std::int64_t k = 0; k < args.K; ++k) sum += x[k] * w[k];
      if (has_gates) sum *= *args.gates.template at<const float>(m, n / (args.N / args.G));
      *args.y.template at<float>(m, n) = sum;
      squares += sum * sum;
    }
    if (args.calls.data != nullptr) ++*args.calls.template at<std::int32_t>(m);
    if (args.workspace.sums != nullptr) args.workspace.sums[m] = squares;
    if (args.norms.data == nullptr) return;
    *args.norms.template at<float>(m) = std::sqrt(has_bias ? args.workspace.sums[m] : squares);
    if (!has_bias) *args.norms.template at<float>(args.M + m) = 0;
  });
  return {};
}

}  // namespace kernelmint
