// Whether what products made is finite: 0 times a value that is not is NaN.
#pragma once

#include <cstdint>
#include <type_traits>

#include "dtypes.h"
#include "ptx/math.cuh"

namespace kernelmint::attention {

// Whether a warp's output has an element that is not finite.
template <class Element>
class FiniteCheck {
 public:
  // The `i`-th of many pairs, one after the other. Products of what is not finite are not, either;
  // that those of bf16 overflow does not happen, and would cost time alone.
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

}  // namespace kernelmint::attention
