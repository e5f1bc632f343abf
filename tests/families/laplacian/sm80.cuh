// A thread takes a point; blocks are boxes.
#pragma once

#include <cstdint>

namespace kernelmint::laplacian {

template <class Config>
__global__ void __launch_bounds__(128 * Config::depth)
    laplacian_sm80(const typename Config::Args args) {
  const std::int64_t z = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 4 + threadIdx.y;
  const std::int64_t x = blockIdx.z * std::int64_t{Config::depth} + threadIdx.z;
  if (x >= args.X || y >= args.Y || z >= args.Z) return;
  const auto at = [&](std::int64_t a, std::int64_t b, std::int64_t c) {
    const bool is_inside = a >= 0 && b >= 0 && c >= 0 && a < args.X && b < args.Y && c < args.Z;
    return is_inside ? *args.x.template at<const float>(a, b, c) : 0.0f;
  };
  *args.y.template at<float>(x, y, z) = at(x - 1, y, z) + at(x + 1, y, z) + at(x, y - 1, z) +
                                        at(x, y + 1, z) + at(x, y, z - 1) + at(x, y, z + 1) -
                                        6 * at(x, y, z);
}

}  // namespace kernelmint::laplacian
