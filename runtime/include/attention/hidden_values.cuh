// Values that are not finite, of keys that some rows see and others do not: 0 times such a value is
// NaN, so that a masked key would reach rows that do not see it. Some kernels take these values out
// of a block; others take no notice, and make anew the rows whose results are not finite.
#pragma once

#include <cstdint>
#include <type_traits>

#include "attention/softmax.cuh"
#include "dtypes.h"
#include "ptx/math.cuh"
#include "register_tile.cuh"

namespace kernelmint::attention {

__device__ __forceinline__ bool is_finite(float x) { return x * 0 == 0; }

// NaN in a half if, so far, a value there was not finite: 0 times such a value is added to `zeros`.
template <class Element>
__device__ __forceinline__ std::uint32_t add_zeros(uint4 values, std::uint32_t zeros) {
  for (const std::uint32_t pair : {values.x, values.y, values.z, values.w})
    zeros = ptx::multiply_add_pairs<Element>(pair, 0, zeros);
  return zeros;
}

// The values, with zeros in place of infinities and NaN.
template <class Element>
__device__ __forceinline__ uint4 finite_values(uint4 values) {
  const auto finite = [](std::uint32_t pair) {
    const float2 x = ptx::unpack<Element>(pair);
    return (is_finite(x.x) ? pair & 0xffffu : 0) | (is_finite(x.y) ? pair & 0xffff0000u : 0);
  };
  return {finite(values.x), finite(values.y), finite(values.z), finite(values.w)};
}

// A check for elements of a warp's output that are not finite.
template <class Element>
class FiniteCheck {
 public:
  // The `i`-th of many pairs, one after the other. Products of values that are not finite are not
  // finite, either; products of bf16 do not overflow, and would only cost time.
  __device__ __forceinline__ void look_at(int i, std::uint32_t pair) {
    std::uint32_t& sum = sums_[i / 2 % 2];
    if (i % 2 == 0)
      before_ = pair;
    else if constexpr (std::is_same_v<Element, bf16>)
      sum = ptx::multiply_add_pairs<Element>(before_, pair, sum);
    else
      sum = ptx::multiply_add_pairs<Element>(pair, 0,
                                             ptx::multiply_add_pairs<Element>(before_, 0, sum));
  }

  __device__ __forceinline__ bool fails() const {
    const std::uint32_t zeros = ptx::multiply_add_pairs<Element>(
        sums_[0], 0, ptx::multiply_add_pairs<Element>(sums_[1], 0, 0));
    return __any_sync(~0u, (zeros & 0x7fff7fffu) != 0);
  }

 private:
  std::uint32_t sums_[2] = {};
  std::uint32_t before_;
};

// A step of the textbook's online softmax in fp32, of one row of the output, which a warp makes
// anew of the keys that the row sees. A lane has every 32nd column, and its part of the sum. The
// next 32 of the keys before `end` are added, from `first` on: each lane has the `score` of one,
// `greatest` is the maximum of all so far, and visit(key, add) calls add(column, value) for the
// lane's columns of a key. Seldom called: the loop stays small.
template <class Element, int kLaneColumns, class Visit>
__device__ __forceinline__ void add_keys(float& maximum, float& sum, float (&output)[kLaneColumns],
                                         float score, float greatest, float factor, int first,
                                         int end, const Visit& visit) {
  const float rescale = ptx::exp2((maximum - greatest) * factor);
  const float probability = ptx::exp2((score - greatest) * factor);
  maximum = greatest;
  sum = sum * rescale + probability;
  unroll<kLaneColumns>([&](int i) { output[i] *= rescale; });
  const int count = min(end - first, 32);
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const float weight = __shfl_sync(~0u, probability, i);
    visit(first + i, [&](int column, Element value) {
      output[column] = fmaf(weight, static_cast<float>(value), output[column]);
    });
  }
}

}  // namespace kernelmint::attention
