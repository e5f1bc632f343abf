// Elementary functions on vectors.
#pragma once

#include "cpu_vector.h"

namespace kernelmint::cpu {
inline namespace KERNELMINT_ISA {

// 2^x for x <= 127. Below -126.5 the result is exactly 0, so exp2(-inf) is 0; NaN gives NaN;
// exp2(0) is exactly 1. Elsewhere the error is below 2 ulp (1.05 with FMA, 1.28 without, over every
// 997th f32: tests/kernels/test_cpu_vector.py).
//
// 2^x = 2^n 2^f with n the integer nearest to x and |f| <= 1/2. Adding 1.5 * 2^23 rounds x to an
// integer in the sum's low bits; the 127 added with it is the exponent's bias, so those bits,
// shifted into place, are 2^n. The polynomial has the least greatest relative error on [-1/2, 1/2],
// 2.6e-9, of all of degree 6 with constant 1 (Remez exchange).
KERNELMINT_ALWAYS_INLINE F32 exp2(F32 x) {
  constexpr float kRound = 0x1.8p23f + 127;
  x = max(splat(-127.0f), x);
  const F32 biased = x + kRound;
  const F32 f = x - (biased - kRound);
  const F32 power = bit_cast<F32>(bit_cast<U32>(biased) << 23);
  F32 p = splat(0x1.470b49p-13f);
  p = fma(p, f, splat(0x1.5f7277p-10f));
  p = fma(p, f, splat(0x1.3b270ep-7f));
  p = fma(p, f, splat(0x1.c6ae73p-5f));
  p = fma(p, f, splat(0x1.ebfbe3p-3f));
  p = fma(p, f, splat(0x1.62e431p-1f));
  p = fma(p, f, splat(1.0f));
  return p * power;
}

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::cpu
