// The code that the kernels of both architectures share: CUTLASS's element types, and a call's
// extents.
#pragma once

#include <cutlass/numeric_types.h>

#include <climits>
#include <cstdint>
#include <type_traits>

#include "dtypes.h"

namespace kernelmint::cutlass_gemm {

template <class T>
using CutlassElement =
    std::conditional_t<std::is_same_v<T, bf16>, cutlass::bfloat16_t, cutlass::half_t>;

// The extents of a call, which CUTLASS counts in 32 bits.
struct Problem {
  int m, n, k;
  const char* error;
};

template <class Config, class Args>
Problem problem_of(const Args& args) {
  const std::int64_t n = Config::trans_b ? args.R : args.S;
  const bool fits = args.M <= INT_MAX && n <= INT_MAX && args.K <= INT_MAX &&
                    args.a.stride[0] <= INT_MAX && args.b.stride[0] <= INT_MAX;
  return {static_cast<int>(args.M), static_cast<int>(n), static_cast<int>(args.K),
          fits ? nullptr : "an extent or a stride exceeds 2^31 - 1"};
}

}  // namespace kernelmint::cutlass_gemm
