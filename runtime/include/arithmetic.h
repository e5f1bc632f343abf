// What a spec's expressions mean once they are C++: integer arithmetic with Python's meaning. A
// namespace of its own, so that no kernel picks these up for floats by accident.
#pragma once

#include <cstdint>
#include <stdexcept>

#include "attributes.h"

namespace kernelmint::expression {

// On the host a zero divisor (an empty tensor's extent, say) is an error that the caller is told
// of.
KERNELMINT_HOST_DEVICE constexpr void check_divisor(std::int64_t divisor) {
#if !defined(__CUDA_ARCH__)
  if (divisor == 0) throw std::domain_error("division by zero");
#endif
}

KERNELMINT_HOST_DEVICE constexpr std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  check_divisor(b);
  const std::int64_t q = a / b;
  return (a % b != 0 && (a < 0) != (b < 0)) ? q - 1 : q;
}

KERNELMINT_HOST_DEVICE constexpr std::int64_t floor_mod(std::int64_t a, std::int64_t b) {
  check_divisor(b);
  const std::int64_t r = a % b;
  return (r != 0 && (r < 0) != (b < 0)) ? r + b : r;
}

KERNELMINT_HOST_DEVICE constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return -floor_div(-a, b);
}

KERNELMINT_HOST_DEVICE constexpr bool is_pow2(std::int64_t a) {
  return a > 0 && (a & (a - 1)) == 0;
}

// Exact for powers of two; the floor elsewhere.
KERNELMINT_HOST_DEVICE constexpr std::int64_t log2(std::int64_t a) {
  std::int64_t result = 0;
  while (a > 1) {
    a >>= 1;
    ++result;
  }
  return result;
}

// a ** n for n >= 0.
KERNELMINT_HOST_DEVICE constexpr std::int64_t power(std::int64_t a, std::int64_t n) {
  std::int64_t result = 1;
  for (; n > 0; --n) result *= a;
  return result;
}

KERNELMINT_HOST_DEVICE constexpr std::int64_t min(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

KERNELMINT_HOST_DEVICE constexpr std::int64_t max(std::int64_t a, std::int64_t b) {
  return a < b ? b : a;
}

}  // namespace kernelmint::expression
