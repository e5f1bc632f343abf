// A part of D, the sum of dO O over a row.
#pragma once

#include <cstdint>

#include "ptx/math.cuh"

namespace kernelmint::attention_backward {

// The sum of the products of eight elements.
template <class Element>
__device__ __forceinline__ float product(const uint4& x, const uint4& y) {
  float sum = 0;
  const auto add = [&](std::uint32_t x, std::uint32_t y) {
    const float2 a = ptx::unpack<Element>(x), b = ptx::unpack<Element>(y);
    sum += a.x * b.x + a.y * b.y;
  };
  add(x.x, y.x), add(x.y, y.y), add(x.z, y.z), add(x.w, y.w);
  return sum;
}

}  // namespace kernelmint::attention_backward
