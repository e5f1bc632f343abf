// The C++ types of a spec's dtype names, for device code and for the host.
#pragma once

#include <cstdint>

#include "attributes.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace kernelmint {

#if defined(__CUDACC__)
using bf16 = __nv_bfloat16;
using fp16 = __half;
#else
// Storage only: CPU kernels convert whole vectors, in the instruction set they are compiled for.
struct bf16 {
  std::uint16_t bits;
};
struct fp16 {
  std::uint16_t bits;
};
#endif
using f32 = float;
using f64 = double;
using i8 = std::int8_t;
using u8 = std::uint8_t;
using i16 = std::int16_t;
using u16 = std::uint16_t;
using i32 = std::int32_t;
using u32 = std::uint32_t;
using i64 = std::int64_t;
using u64 = std::uint64_t;

// An 8-bit float with kMantissa bits of fraction. An f32 converts to it as in PyTorch (since 2.12),
// on the CPU and on a GPU alike: to the nearest, ties to even; beyond the range to 448 in e4m3fn,
// which has no infinity, and to infinity in e5m2; NaN to the NaN whose bits are all set. CUDA's
// intrinsics call the type of `bits` __nv_fp8_storage_t. (CUDA's own type for e5m2 saturates.)
template <int kMantissa>
struct Float8 {
  std::uint8_t bits;

  Float8() = default;

  KERNELMINT_ALWAYS_INLINE KERNELMINT_HOST_DEVICE explicit Float8(float value) {
    const auto word = __builtin_bit_cast(std::uint32_t, value);
    const std::uint32_t magnitude = word & 0x7fffffff;
    std::uint32_t result;
    if (magnitude > kLastInRange) {
      result = magnitude > 0x7f800000 ? 0x7f : kBeyondRange;
    } else if (magnitude < kLeastNormal) {
      // Beside kUnit the last place is the least subnormal, so the addition rounds.
      const float sum = __builtin_bit_cast(float, magnitude) + __builtin_bit_cast(float, kUnit);
      result = __builtin_bit_cast(std::uint32_t, sum) - kUnit;
    } else {
      const std::uint32_t odd = magnitude >> kShift & 1;
      result = (magnitude - kRebias + (1u << (kShift - 1)) - 1 + odd) >> kShift;
    }
    bits = static_cast<std::uint8_t>(result | (word >> 24 & 0x80));
  }

  KERNELMINT_ALWAYS_INLINE KERNELMINT_HOST_DEVICE explicit operator float() const {
    const std::uint32_t magnitude = bits & 0x7fu;
    std::uint32_t result = (magnitude << kShift) + kRebias;
    if (magnitude > kMost)
      result = magnitude == kBeyondRange ? 0x7f800000 : 0x7fc00000;
    else if (magnitude < 1u << kMantissa)
      result = __builtin_bit_cast(std::uint32_t, static_cast<float>(magnitude) * kLeastSubnormal);
    return __builtin_bit_cast(float, result | (bits & 0x80u) << 24);
  }

  // How the two kinds differ, and how they lie in an f32: for the conversions of whole vectors.
  static_assert(kMantissa == 2 || kMantissa == 3);
  static constexpr int kBias = kMantissa == 2 ? 15 : 7;
  static constexpr int kShift = 23 - kMantissa;
  static constexpr std::uint32_t kMost = kMantissa == 2 ? 0x7b : 0x7e;  // the greatest finite one
  static constexpr std::uint32_t kBeyondRange = kMantissa == 2 ? 0x7c : kMost;
  // The last f32 to become kMost by rounding: below 61440, and 464, a tie.
  static constexpr std::uint32_t kLastInRange = kMantissa == 2 ? 0x476fffff : 0x43e80000;
  static constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - kBias) << 23;
  static constexpr std::uint32_t kLeastNormal = static_cast<std::uint32_t>(128 - kBias) << 23;
  static constexpr std::uint32_t kUnit = static_cast<std::uint32_t>(151 - kBias - kMantissa) << 23;
  static constexpr float kLeastSubnormal = kMantissa == 2 ? 0x1p-16f : 0x1p-9f;
};

using e4m3fn = Float8<3>;
using e5m2 = Float8<2>;

// Two 4-bit floats, the first in the lower half of the byte. CUDA's intrinsics call the type of
// `bits` __nv_fp4x2_storage_t.
struct e2m1x2 {
  std::uint8_t bits;
};

// A complex number as PyTorch, std::complex and cuComplex.h lay it out.
template <class Real>
struct alignas(2 * sizeof(Real)) Complex {
  Real real, imag;

  template <class Other>
  KERNELMINT_ALWAYS_INLINE KERNELMINT_HOST_DEVICE explicit operator Complex<Other>() const {
    return {static_cast<Other>(real), static_cast<Other>(imag)};
  }
};

using complex64 = Complex<float>;
using complex128 = Complex<double>;

}  // namespace kernelmint
