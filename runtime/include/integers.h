// Arithmetic of integers. (A spec's expressions, of any sign, are in arithmetic.h.)
#pragma once

#include <cstdint>

#include "attributes.h"

namespace kernelmint {

// Division that rounds up: of a >= 0 by b > 0, if their type holds the sum.
template <class A, class B>
KERNELMINT_ALWAYS_INLINE KERNELMINT_HOST_DEVICE constexpr auto ceil_div(A a, B b) {
  return (a + b - 1) / b;
}

// By a constant, as a template argument: given as the other kind, nvcc forgets that the sum is not
// negative before it knows the divisor, and a power of two takes more than a shift.
template <int kDivisor, class A>
KERNELMINT_ALWAYS_INLINE KERNELMINT_HOST_DEVICE constexpr auto ceil_div(A a) {
  return (a + kDivisor - 1) / kDivisor;
}

// The least multiple of b that is not less than a.
template <class A, class B>
KERNELMINT_ALWAYS_INLINE KERNELMINT_HOST_DEVICE constexpr auto round_up(A a, B b) {
  return ceil_div(a, b) * b;
}

// Kernels of one instruction set call no inline function of std, std::min and std::max among them.
KERNELMINT_ALWAYS_INLINE KERNELMINT_HOST_DEVICE constexpr std::int64_t smaller(std::int64_t a,
                                                                               std::int64_t b) {
  return a < b ? a : b;
}
KERNELMINT_ALWAYS_INLINE KERNELMINT_HOST_DEVICE constexpr std::int64_t larger(std::int64_t a,
                                                                              std::int64_t b) {
  return a < b ? b : a;
}

}  // namespace kernelmint
