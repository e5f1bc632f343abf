// z = alpha * x + y on a GPU: a block takes a tile of a row.
#pragma once

#include <cstdint>

#include "dtypes.h"
#include "integers.h"

namespace kernelmint::${family} {

template <class Config>
__global__ void __launch_bounds__(Config::threads)
    ${family}_sm80(const typename Config::Args args) {
  using T = typename Config::dtype;
  const std::int64_t tiles = ceil_div(args.N, Config::tile);  // each row's
  const std::int64_t row = blockIdx.x / tiles;
  const std::int64_t first = blockIdx.x % tiles * Config::tile;
  const T* x = args.x.template at<const T>(row);
  const T* y = args.y.template at<const T>(row);
  T* z = args.z.template at<T>(row);
#pragma unroll
  for (int i = threadIdx.x; i < Config::tile; i += Config::threads) {
    const std::int64_t column = first + i;
    if (column < args.N)
      z[column] = static_cast<T>(
          fmaf(args.alpha, static_cast<float>(x[column]), static_cast<float>(y[column])));
  }
}

}  // namespace kernelmint::${family}
