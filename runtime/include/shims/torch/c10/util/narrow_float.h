// The code that the shims of BFloat16 and Half share: like PyTorch's types, they convert to and
// from float, compare as floats, and calculate in float, rounded after each operation; with a wider
// type as that type.
#pragma once

#include <c10/macros/Macros.h>

#include <concepts>
#include <cstdint>
#include <limits>

namespace kernelmint::torch_shim {

#define KERNELMINT_OPERATOR(sign)                                  \
  friend C10_HOST_DEVICE T operator sign(const T& a, const T& b) { \
    return static_cast<float>(a) sign static_cast<float>(b);       \
  }                                                                \
  template <std::floating_point F>                                 \
  friend C10_HOST_DEVICE F operator sign(const T& a, F b) {        \
    return static_cast<float>(a) sign b;                           \
  }                                                                \
  template <std::floating_point F>                                 \
  friend C10_HOST_DEVICE F operator sign(F a, const T& b) {        \
    return a sign static_cast<float>(b);                           \
  }                                                                \
  template <std::integral I>                                       \
  friend C10_HOST_DEVICE T operator sign(const T& a, I b) {        \
    return a sign static_cast<T>(b);                               \
  }                                                                \
  template <std::integral I>                                       \
  friend C10_HOST_DEVICE T operator sign(I a, const T& b) {        \
    return static_cast<T>(a) sign b;                               \
  }                                                                \
  friend C10_HOST_DEVICE T& operator sign## = (T & a, const T& b) { return a = a sign b; }

// Exact matches, so that CUDA's types, to which T converts, make no comparison ambiguous.
#define KERNELMINT_COMPARISON(sign)                                   \
  friend C10_HOST_DEVICE bool operator sign(const T& a, const T& b) { \
    return static_cast<float>(a) sign static_cast<float>(b);          \
  }

// The operators of T.
template <class T>
struct Arithmetic {
  KERNELMINT_OPERATOR(+)
  KERNELMINT_OPERATOR(-)
  KERNELMINT_OPERATOR(*)
  KERNELMINT_OPERATOR(/)
  friend C10_HOST_DEVICE T operator-(const T& a) { return -static_cast<float>(a); }
  KERNELMINT_COMPARISON(==)
  KERNELMINT_COMPARISON(!=)
  KERNELMINT_COMPARISON(<)
  KERNELMINT_COMPARISON(<=)
  KERNELMINT_COMPARISON(>)
  KERNELMINT_COMPARISON(>=)
};
#undef KERNELMINT_OPERATOR
#undef KERNELMINT_COMPARISON

// std::numeric_limits of a T with kDigits bits of precision, by the bits of its values.
template <class T, int kDigits, std::uint16_t kMin, std::uint16_t kMax, std::uint16_t kEpsilon,
          std::uint16_t kInfinity>
struct Limits : std::numeric_limits<float> {
  static constexpr int digits = kDigits;
  static constexpr T min() { return T(kMin, T::from_bits()); }
  static constexpr T max() { return T(kMax, T::from_bits()); }
  static constexpr T lowest() { return T(kMax | 0x8000, T::from_bits()); }
  static constexpr T epsilon() { return T(kEpsilon, T::from_bits()); }
  static constexpr T infinity() { return T(kInfinity, T::from_bits()); }
  static constexpr T quiet_NaN() { return T(kInfinity | kInfinity >> 1, T::from_bits()); }
  static constexpr T denorm_min() { return T(1, T::from_bits()); }
};

}  // namespace kernelmint::torch_shim
