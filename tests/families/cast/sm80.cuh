#pragma once

#include "dtypes.h"

namespace kernelmint::cast {

template <class Config>
__global__ void cast_sm80(const typename Config::Args args) {
  const std::int64_t i = blockIdx.x * std::int64_t{256} + threadIdx.x;
  if (i >= args.N) return;
  using Source = typename Config::source;
  using Result = typename Config::result;
  *args.y.template at<Result>(i) = static_cast<Result>(*args.x.template at<const Source>(i));
}

}  // namespace kernelmint::cast
