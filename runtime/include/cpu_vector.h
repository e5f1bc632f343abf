// Vectors as wide as the registers of the instruction set that a translation unit is compiled for,
// through the compiler's vector extensions: the same source serves SSE2, AVX2, AVX-512 and NEON.
//
// A CPU shard is compiled several times, with different flags, and all copies are linked into one
// library. Whatever they emit out of line must therefore carry its instruction set in its name, or
// the linker would keep one copy for all: everything in these headers lies in an inline namespace
// named by KERNELMINT_ISA or is KERNELMINT_ALWAYS_INLINE, and nothing calls inline functions of
// std.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "attributes.h"

#if !defined(KERNELMINT_ISA)
#error "compile with -DKERNELMINT_ISA=<name>, an instruction set of launch.h"
#endif

namespace kernelmint::cpu {
inline namespace KERNELMINT_ISA {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define KERNELMINT_AVX512_VECTORS 1
inline constexpr int kVectorBytes = 64;
inline constexpr int kVectorRegisters = 32;
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define KERNELMINT_AVX2_VECTORS 1
inline constexpr int kVectorBytes = 32;
inline constexpr int kVectorRegisters = 16;
#elif defined(__aarch64__)
inline constexpr int kVectorBytes = 16;
inline constexpr int kVectorRegisters = 32;
#else
inline constexpr int kVectorBytes = 16;
inline constexpr int kVectorRegisters = 16;
#endif

template <class T, int Bytes = kVectorBytes>
struct VectorType {
  typedef T type __attribute__((vector_size(Bytes)));
};
template <class T, int Bytes = kVectorBytes>
using Vector = typename VectorType<T, Bytes>::type;

using F32 = Vector<float>;
using I32 = Vector<std::int32_t>;
using U32 = Vector<std::uint32_t>;
using U16 = Vector<std::uint16_t>;
using HalfU16 = Vector<std::uint16_t, kVectorBytes / 2>;  // the number of elements of an F32
using QuarterU8 = Vector<std::uint8_t, kVectorBytes / 4>;
inline constexpr int kLanes = kVectorBytes / 4;  // elements of an F32

template <class V>
inline constexpr int lanes_of = sizeof(V) / sizeof(std::declval<V>()[0]);

template <class To, class From>
KERNELMINT_ALWAYS_INLINE To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}

template <class V>
KERNELMINT_ALWAYS_INLINE V load_bits(const void* from) {  // no alignment needed
  V v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

template <class V>
KERNELMINT_ALWAYS_INLINE void store_bits(void* to, V v) {
  __builtin_memcpy(to, &v, sizeof v);
}

// x - 0 is x whatever its sign; x + 0 would cost an addition, for the sake of -0.
KERNELMINT_ALWAYS_INLINE F32 splat(float x) { return x - F32{}; }
KERNELMINT_ALWAYS_INLINE I32 splat(std::int32_t x) { return I32{} + x; }

KERNELMINT_ALWAYS_INLINE I32 lane_numbers() {
  return []<int... I>(std::integer_sequence<int, I...>) {
    return I32{I...};
  }(std::make_integer_sequence<int, kLanes>{});
}

// a * b + c, rounded once if the instruction set can.
KERNELMINT_ALWAYS_INLINE F32 fma(F32 a, F32 b, F32 c) {
#if defined(KERNELMINT_AVX512_VECTORS)
  return (F32)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(KERNELMINT_AVX2_VECTORS)
  return (F32)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (F32)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

// a * b, rounded before anything else is done with it: left to itself, the compiler fuses it into a
// following sum.
KERNELMINT_ALWAYS_INLINE F32 rounded_product(F32 a, F32 b) {
  F32 product = a * b;
#if defined(__x86_64__)
  asm("" : "+v"(product));
#elif defined(__aarch64__)
  asm("" : "+w"(product));
#else
#error "say here how this processor keeps a product from being fused"
#endif
  return product;
}

// The greater, lane by lane; the second if either is NaN, so a NaN in `b` comes through. (NEON
// returns a NaN from either side, which is right here.)
KERNELMINT_ALWAYS_INLINE F32 max(F32 a, F32 b) {
#if defined(KERNELMINT_AVX512_VECTORS)
  return (F32)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(KERNELMINT_AVX2_VECTORS)
  return (F32)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
  return (F32)_mm_max_ps((__m128)a, (__m128)b);
#elif defined(__aarch64__)
  return (F32)vmaxq_f32((float32x4_t)a, (float32x4_t)b);
#else
  return a > b ? a : b;
#endif
}

// Element i of the result is element I of the concatenation of a and b.
template <int... I, class V>
KERNELMINT_ALWAYS_INLINE V shuffle(V a, V b, std::integer_sequence<int, I...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, I...);
#else  // GCC has had this one since long before __builtin_shufflevector
  using Index =
      Vector<std::conditional_t<sizeof(a[0]) == 2, std::int16_t, std::int32_t>, sizeof(V)>;
  return __builtin_shuffle(a, b, Index{I...});
#endif
}

// a0 b0 a1 b1 ...: the lower halves of a and b, element by element; and the upper ones.
template <class V>
KERNELMINT_ALWAYS_INLINE V interleave_low(V a, V b) {
  return [&]<int... I>(std::integer_sequence<int, I...>) {
    return shuffle(a, b, std::integer_sequence<int, (I / 2 + I % 2 * lanes_of<V>)...>{});
  }(std::make_integer_sequence<int, lanes_of<V>>{});
}

template <class V>
KERNELMINT_ALWAYS_INLINE V interleave_high(V a, V b) {
  return [&]<int... I>(std::integer_sequence<int, I...>) {
    return shuffle(a, b,
                   std::integer_sequence<int, ((lanes_of<V> + I) / 2 + I % 2 * lanes_of<V>)...>{});
  }(std::make_integer_sequence<int, lanes_of<V>>{});
}

// In place, rows become columns: log2(N) perfect shuffles of the N rows.
template <class V>
KERNELMINT_ALWAYS_INLINE void transpose(V (&rows)[lanes_of<V>]) {
  constexpr int n = lanes_of<V>;
#pragma GCC unroll 8
  for (int stage = 1; stage < n; stage *= 2) {
    V next[n];
#pragma GCC unroll 16
    for (int i = 0; i < n / 2; ++i) {
      next[2 * i] = interleave_low(rows[i], rows[i + n / 2]);
      next[2 * i + 1] = interleave_high(rows[i], rows[i + n / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) rows[i] = next[i];
  }
}

// Element i of the result is the sum of rows[i]'s elements. The shuffles of transpose(), each pair
// of whose results is added up at once.
template <int N = kLanes>
KERNELMINT_ALWAYS_INLINE F32 sum_each(const F32 (&rows)[N]) {
  if constexpr (N == 1) {
    return rows[0];
  } else {
    F32 sums[N / 2];
#pragma GCC unroll 16
    for (int i = 0; i < N / 2; ++i) {
      sums[i] =
          interleave_low(rows[i], rows[i + N / 2]) + interleave_high(rows[i], rows[i + N / 2]);
    }
    return sum_each(sums);
  }
}

// Applies `combine` along a butterfly; every lane of the result holds the reduction of all lanes.
template <int Distance = kLanes / 2, class Combine>
KERNELMINT_ALWAYS_INLINE F32 reduce(F32 v, Combine combine) {
  if constexpr (Distance == 0) {
    return v;
  } else {
    const F32 other = [&]<int... I>(std::integer_sequence<int, I...>) {
      return shuffle(v, v, std::integer_sequence<int, (I ^ Distance)...>{});
    }(std::make_integer_sequence<int, kLanes>{});
    return reduce<Distance / 2>(combine(v, other), combine);
  }
}

KERNELMINT_ALWAYS_INLINE float reduce_max(F32 v) {
  return reduce(v, [](F32 a, F32 b) __attribute__((always_inline)) { return max(a, b); })[0];
}

KERNELMINT_ALWAYS_INLINE float reduce_add(F32 v) {
  return reduce(v, [](F32 a, F32 b) __attribute__((always_inline)) { return a + b; })[0];
}

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::cpu
