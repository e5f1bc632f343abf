// Probabilities, and gradients of scores.
#pragma once

#include "cpu_vector.h"

namespace kernelmint::attention_backward {
inline namespace KERNELMINT_ISA {

using namespace kernelmint::cpu;

// e^x for x <= 88; exactly 0 below -87.7, NaN of NaN. exp2() (cpu_math.h) of x log2(e) would lose
// some 2^-24 of |x| by the product's rounding. Here x less a multiple of ln 2, subtracted in two
// parts without loss, goes into exp2()'s polynomial, whose coefficients have log2(e)'s powers.
KERNELMINT_ALWAYS_INLINE F32 exp(F32 x) {
  constexpr float kRound = 0x1.8p23f + 127, kLn2High = 0x1.62e4p-1f, kLn2Low = 0x1.7f7d1cp-20f;
  x = max(splat(-88.0f), x);
  const F32 biased = fma(x, splat(0x1.715476p0f), splat(kRound));
  const F32 n = biased - kRound;
  const F32 f = fma(n, splat(-kLn2Low), fma(n, splat(-kLn2High), x));
  const F32 power = bit_cast<F32>(bit_cast<U32>(biased) << 23);
  F32 p = splat(0x1.709b62p-10f);
  p = fma(p, f, splat(0x1.12903ep-7f));
  p = fma(p, f, splat(0x1.55515ep-5f));
  p = fma(p, f, splat(0x1.5553c2p-3f));
  p = fma(p, f, splat(0x1.000002p-1f));
  p = fma(p, f, splat(0x1.000000p0f));
  p = fma(p, f, splat(1.0f));
  return p * power;
}

// Probabilities of a vector of one row's keys, and the gradients of their scores.
struct Differentiated {
  F32 p, ds;
};

// The gradients at the first `count` keys; 0 at the other keys.
KERNELMINT_ALWAYS_INLINE Differentiated seen_from_front(F32 p, F32 ds, int count) {
  if (count >= kLanes) return {p, ds};
  const I32 lane = lane_numbers();
  return {lane < count ? p : F32{}, lane < count ? ds : F32{}};
}

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::attention_backward
