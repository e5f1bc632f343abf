// The meaning of a spec's expressions as C++: Python's arithmetic, or a NoValue if Python has no
// value, or if the result or a step on the way to it does not fit in 64 bits. The result is never
// another value. A namespace of its own keeps kernels from picking these up by accident. (<string>
// and the headers that include it are absent: nvcc takes half a second to read them, each time that
// it reads a file.)
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <initializer_list>
#include <type_traits>

#include "message.h"

namespace kernelmint::expression {

// A report that an expression has no value, and the reason.
class NoValue : public std::exception {
 public:
  explicit NoValue(const char* reason) { std::snprintf(reason_, sizeof(reason_), "%s", reason); }
  const char* what() const noexcept override { return reason_; }

 private:
  char reason_[80];
};

[[noreturn]] inline void refuse(const char* reason) { throw NoValue(reason); }

// The value, unless its computation overflowed. -2^63 counts as such: its negative does not fit.
constexpr std::int64_t held(bool overflows, std::int64_t value) {
  if (overflows || value == INT64_MIN) [[unlikely]]
    refuse("an integer exceeds 64 bits");
  return value;
}

constexpr std::int64_t sum(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  const bool overflows = __builtin_add_overflow(a, b, &result);
  return held(overflows, result);
}

constexpr std::int64_t difference(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  const bool overflows = __builtin_sub_overflow(a, b, &result);
  return held(overflows, result);
}

constexpr std::int64_t product(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  const bool overflows = __builtin_mul_overflow(a, b, &result);
  return held(overflows, result);
}

template <class... More>
constexpr std::int64_t sum(std::int64_t a, std::int64_t b, std::int64_t c, More... more) {
  return sum(sum(a, b), c, more...);
}

template <class... More>
constexpr std::int64_t product(std::int64_t a, std::int64_t b, std::int64_t c, More... more) {
  return product(product(a, b), c, more...);
}

constexpr std::int64_t negative(std::int64_t a) { return difference(0, a); }

// A zero divisor may be an empty tensor's extent.
constexpr void check_divisor(bool is_zero) {
  if (is_zero) [[unlikely]]
    refuse("division by zero");
}

constexpr std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  check_divisor(b == 0);
  if (b == -1) return negative(a);  // -2^63 / -1 traps
  const std::int64_t q = a / b;
  return (a % b != 0 && (a < 0) != (b < 0)) ? q - 1 : q;
}

constexpr std::int64_t floor_mod(std::int64_t a, std::int64_t b) {
  check_divisor(b == 0);
  if (b == -1) return 0;  // -2^63 % -1 traps
  const std::int64_t r = a % b;
  return (r != 0 && (r < 0) != (b < 0)) ? r + b : r;
}

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return negative(floor_div(negative(a), b));
}

constexpr bool is_pow2(std::int64_t a) { return a > 0 && (a & (a - 1)) == 0; }

// Rounded down.
constexpr std::int64_t log2(std::int64_t a) {
  if (a < 1) [[unlikely]]
    refuse(message("log2 of %lld", static_cast<long long>(a)));
  std::int64_t result = 0;
  while (a > 1) {
    a >>= 1;
    ++result;
  }
  return result;
}

constexpr std::int64_t power(std::int64_t a, std::int64_t n) {
  if (n < 0) [[unlikely]]
    refuse(message("an integer to the power of %lld", static_cast<long long>(n)));
  if (a == 0 || a == 1 || a == -1) return n == 0 ? 1 : n % 2 == 0 ? a * a : a;
  std::int64_t result = 1;
  for (; n > 0; --n) result = product(result, a);  // overflows within 63 steps
  return result;
}

// The least power of two that is no less than a.
constexpr std::int64_t next_pow2(std::int64_t a) {
  return a <= 1 ? 1 : power(2, log2(difference(a, 1)) + 1);
}

// The lesser of two integers, or as min<double>.
template <class T = std::int64_t>
constexpr T min(std::type_identity_t<T> a, std::type_identity_t<T> b) {
  return b < a ? b : a;
}

template <class T = std::int64_t>
constexpr T max(std::type_identity_t<T> a, std::type_identity_t<T> b) {
  return a < b ? b : a;
}

// An integer as a float, if that is the same number.
constexpr double exact(std::int64_t a) {
  constexpr std::int64_t kMost = std::int64_t{1} << 53;
  if (a > kMost || a < -kMost) [[unlikely]]
    refuse(message("a float does not hold the integer %lld", static_cast<long long>(a)));
  return static_cast<double>(a);
}

constexpr double quotient(double a, double b) {
  check_divisor(b == 0);
  return a / b;
}

inline double real_power(double a, double b) {
  const double result = std::pow(a, b);
  if (!std::isfinite(result) && std::isfinite(a) && std::isfinite(b)) [[unlikely]]
    refuse("a power is not a finite number");
  return result;
}

// Python's `a in [...]`: the list is evaluated as a whole.
template <class T>
constexpr bool is_in(T a, std::initializer_list<T> list) {
  for (const T& element : list)
    if (a == element) return true;
  return false;
}

}  // namespace kernelmint::expression
