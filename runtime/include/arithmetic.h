// What a spec's expressions mean once they are C++: integer arithmetic with Python's meaning. A
// namespace of its own, so that no kernel picks these up for floats by accident.
#pragma once

#include <cstdint>

#include "tensor_view.h"

namespace kernelmint::expression {

KERNELMINT_HOST_DEVICE constexpr std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  const std::int64_t q = a / b;
  return (a % b != 0 && (a < 0) != (b < 0)) ? q - 1 : q;
}

KERNELMINT_HOST_DEVICE constexpr std::int64_t floor_mod(std::int64_t a, std::int64_t b) {
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

KERNELMINT_HOST_DEVICE constexpr std::int64_t min(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

KERNELMINT_HOST_DEVICE constexpr std::int64_t max(std::int64_t a, std::int64_t b) {
  return a < b ? b : a;
}

}  // namespace kernelmint::expression
