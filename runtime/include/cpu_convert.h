// Vectors of f32 from and to memory in any floating dtype. Rounding is to nearest even; subnormals,
// infinities and NaN survive, whatever the processor's flush-to-zero modes.
#pragma once

#include "cpu_vector.h"
#include "dtypes.h"

namespace kernelmint::cpu {
inline namespace KERNELMINT_ISA {

// Zero extension. (GCC makes four instructions of __builtin_convertvector here.)
KERNELMINT_ALWAYS_INLINE U32 widen(HalfU16 v) {
#if defined(KERNELMINT_AVX512_VECTORS)
  return (U32)_mm512_cvtepu16_epi32((__m256i)v);
#elif defined(KERNELMINT_AVX2_VECTORS)
  return (U32)_mm256_cvtepu16_epi32((__m128i)v);
#else
  return __builtin_convertvector(v, U32);
#endif
}

KERNELMINT_ALWAYS_INLINE F32 load(const float* from) { return load_bits<F32>(from); }

KERNELMINT_ALWAYS_INLINE F32 load(const bf16* from) {
  return bit_cast<F32>(widen(load_bits<HalfU16>(from)) << 16);
}

KERNELMINT_ALWAYS_INLINE F32 load(const fp16* from) {
#if defined(KERNELMINT_AVX512_VECTORS)
  return (F32)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(KERNELMINT_AVX2_VECTORS)
  return (F32)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#elif defined(__aarch64__)
  return (F32)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&from->bits)));
#else
  const U32 half = widen(load_bits<HalfU16>(from));
  const U32 sign = (half & 0x8000) << 16;
  const U32 magnitude = (half & 0x7fff) << 13;  // the fraction in place, the exponent 112 too low
  const U32 normal = magnitude + (112u << 23);
  const U32 subnormal =  // fraction * 2^-24: 2^-14 + fraction * 2^-24 is a normal number
      bit_cast<U32>(bit_cast<F32>(magnitude + (113u << 23)) - 0x1p-14f);
  const U32 not_finite = magnitude + (224u << 23);
  const U32 value = magnitude < (1u << 23)    ? subnormal
                    : magnitude < (31u << 23) ? normal
                                              : not_finite;
  return bit_cast<F32>(value | sign);
#endif
}

template <int kMantissa>
KERNELMINT_ALWAYS_INLINE F32 load(const Float8<kMantissa>* from) {
  using T = Float8<kMantissa>;
  const U32 bits = __builtin_convertvector(load_bits<QuarterU8>(from), U32);
  const U32 magnitude = bits & 0x7f;
  const U32 normal = (magnitude << T::kShift) + T::kRebias;
  const U32 subnormal = bit_cast<U32>(__builtin_convertvector(magnitude, F32) * T::kLeastSubnormal);
  const U32 not_finite = magnitude == T::kBeyondRange ? U32{} + 0x7f800000 : U32{} + 0x7fc00000;
  const U32 value = magnitude > T::kMost            ? not_finite
                    : magnitude < (1u << kMantissa) ? subnormal
                                                    : normal;
  return bit_cast<F32>(value | (bits & 0x80) << 24);
}

KERNELMINT_ALWAYS_INLINE void store(float* to, F32 v) { store_bits(to, v); }

KERNELMINT_ALWAYS_INLINE void store(bf16* to, F32 v) {
  const U32 bits = bit_cast<U32>(v);
  const U32 rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const U32 nan = (bits >> 16) | 0x40;  // quiet, and no carry out of its fraction
  store_bits(to,
             __builtin_convertvector((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded, HalfU16));
}

KERNELMINT_ALWAYS_INLINE void store(fp16* to, F32 v) {
#if defined(KERNELMINT_AVX512_VECTORS)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(KERNELMINT_AVX2_VECTORS)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__aarch64__)
  vst1_u16(&to->bits, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)v)));
#else
  const U32 bits = bit_cast<U32>(v);
  const U32 magnitude = bits & 0x7fffffff;
  const U32 normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  const U32 subnormal =  // beside 0.5 the last place is 2^-24, so the addition rounds
      bit_cast<U32>(bit_cast<F32>(magnitude) + 0.5f) - (126u << 23);
  const U32 half = magnitude > 0x7f800000     ? U32{} + 0x7e00
                   : magnitude >= 0x477ff000  ? U32{} + 0x7c00  // 65520 and above round to infinity
                   : magnitude < (113u << 23) ? subnormal
                                              : normal;
  store_bits(to, __builtin_convertvector(half | ((bits >> 16) & 0x8000), HalfU16));
#endif
}

template <int kMantissa>
KERNELMINT_ALWAYS_INLINE void store(Float8<kMantissa>* to, F32 v) {
  using T = Float8<kMantissa>;
  const U32 bits = bit_cast<U32>(v);
  const U32 magnitude = bits & 0x7fffffff;
  const U32 half = U32{} + ((1u << (T::kShift - 1)) - 1);
  const U32 normal = (magnitude - T::kRebias + half + ((magnitude >> T::kShift) & 1)) >> T::kShift;
  const U32 unit = U32{} + T::kUnit;  // the unit of Float8's constructor
  const U32 subnormal = bit_cast<U32>(bit_cast<F32>(magnitude) + bit_cast<F32>(unit)) - unit;
  const U32 beyond = magnitude > 0x7f800000 ? U32{} + 0x7f : U32{} + T::kBeyondRange;
  const U32 value = magnitude > T::kLastInRange   ? beyond
                    : magnitude < T::kLeastNormal ? subnormal
                                                  : normal;
  store_bits(to, __builtin_convertvector(value | ((bits >> 24) & 0x80), QuarterU8));
}

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::cpu
