// One thread's loop, for the CPU and for CUDA. Returns whether the workspaces are filled.
#pragma once

#include "dtypes.h"

#if defined(__CUDACC__)
#define ABOVE_FUNCTION __device__
#else
#define ABOVE_FUNCTION
#endif

namespace kernelmint::above {

template <class Config>
ABOVE_FUNCTION bool select(const typename Config::Args& args) {
  using Value = typename Config::dtype;
  const auto* x = args.x.template as<const typename Config::source>();
  auto* values = args.values.template as<Value>();
  auto* indices = args.indices.template as<std::int64_t>();
  auto* count = args.count.template as<std::int32_t>();
  const auto& workspace = args.workspace;
  for (int i = 0; i < 3; ++i)
    if (static_cast<const Value*>(workspace.least)[i] > -1e38) return false;
  for (std::int64_t i = 0; i < args.N; ++i) {
    if (workspace.zeros[i] != 0 || workspace.ones[i] != -1) return false;
    if (!(x[i] > args.threshold) || *count == args.most) continue;
    if (indices != nullptr) indices[*count] = i;
    values[(*count)++] = x[i];
  }
  return true;
}

}  // namespace kernelmint::above
