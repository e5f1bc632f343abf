// Changes of scores before their softmax: caps, biases, windows.
#pragma once

#include "attention/softcap.h"
#include "cpu_vector.h"

namespace kernelmint::attention {
inline namespace KERNELMINT_ISA {

using namespace kernelmint::cpu;

inline constexpr float kNoKey = -__builtin_inff();  // the score of a hidden key
inline constexpr float kLog2E = 0x1.715476p0f, kLn2 = 0x1.62e43p-1f;

// cap * tanh(score / cap); NaN of NaN.
KERNELMINT_ALWAYS_INLINE F32 capped(F32 score, float cap) {
  const float end = cap * kTanhIsOne;
  F32 above, below;
  tanh_quotient(score * (1 / cap), above, below);
  const F32 inside = score * (above / below);
  return score >= end ? splat(cap) : score <= -end ? splat(-cap) : inside;
}

// A vector of scores as exponents of 2: scaled, capped, biased; -inf if the row does not see the
// key. `ahead` is how far the row's own key is ahead of each lane's.
template <class Args>
KERNELMINT_ALWAYS_INLINE F32 finished_scores(const Args& args, F32 s, float slope, I32 ahead) {
  s = rounded_product(s, splat(args.softmax_scale * kLog2E));
  if (const float cap = usable_cap(args.softcap * kLog2E); cap > 0) s = capped(s, cap);
  if (slope != 0) s -= slope * kLog2E * __builtin_convertvector(ahead < 0 ? -ahead : ahead, F32);
  if (args.window_left >= 0) s = ahead > args.window_left ? splat(kNoKey) : s;
  if (args.window_right >= 0) s = -ahead > args.window_right ? splat(kNoKey) : s;
  return s;
}

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::attention
