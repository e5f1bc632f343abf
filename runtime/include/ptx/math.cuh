// Arithmetic that C++ has no name for.
#pragma once

#include <cstdint>

#include "dtypes.h"

namespace kernelmint::ptx {

// 2^x; subnormals are flushed to zero, 2^-inf = 0. At most 2 ulp off: PTX ISA, "ex2".
__device__ __forceinline__ float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x; subnormals are flushed to zero on both sides. At most 1 ulp off: PTX ISA, "rcp".
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// x, or the nearest of -most and most if it lies beyond; NaN stays NaN: PTX ISA, "min", "max".
__device__ __forceinline__ float clamp(float x, float most) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(most));
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(y), "f"(-most));
  return y;
}

// Two floats rounded to T, `low` in the lower half.
template <class T>
__device__ __forceinline__ std::uint32_t pack(float low, float high);

// cvt's first source operand fills the upper half: PTX ISA, "cvt".
template <>
__device__ __forceinline__ std::uint32_t pack<bf16>(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

template <>
__device__ __forceinline__ std::uint32_t pack<fp16>(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// The two values of a pair, the lower half first.
template <class T>
__device__ __forceinline__ float2 unpack(std::uint32_t packed);

template <>
__device__ __forceinline__ float2 unpack<bf16>(std::uint32_t packed) {
  return {__uint_as_float(packed << 16), __uint_as_float(packed & 0xffff0000u)};
}

template <>
__device__ __forceinline__ float2 unpack<fp16>(std::uint32_t packed) {
  return __half22float2(reinterpret_cast<const __half2&>(packed));
}

// x y + z of both values of a pair.
template <class T>
__device__ __forceinline__ std::uint32_t multiply_add_pairs(std::uint32_t x, std::uint32_t y,
                                                            std::uint32_t z);

template <>
__device__ __forceinline__ std::uint32_t multiply_add_pairs<bf16>(std::uint32_t x, std::uint32_t y,
                                                                  std::uint32_t z) {
  std::uint32_t sum;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(x), "r"(y), "r"(z));
  return sum;
}

template <>
__device__ __forceinline__ std::uint32_t multiply_add_pairs<fp16>(std::uint32_t x, std::uint32_t y,
                                                                  std::uint32_t z) {
  std::uint32_t sum;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(x), "r"(y), "r"(z));
  return sum;
}

}  // namespace kernelmint::ptx
