// What becomes of scores before their softmax: caps, biases, windows.
#pragma once

#include "cpu_math.h"
#include "cpu_vector.h"

namespace kernelmint::attention {
inline namespace KERNELMINT_ISA {

using namespace kernelmint::cpu;

inline constexpr float kNoKey = -__builtin_inff();  // the score of a hidden key
inline constexpr float kLog2E = 0x1.715476p0f, kLn2 = 0x1.62e43p-1f;

// A vector of scores as exponents of 2: scaled, capped, biased; -inf if the row does not see the
// key. `ahead` is how far the row's own key is ahead of each lane's.
template <class Args>
KERNELMINT_ALWAYS_INLINE F32 finished_scores(const Args& args, F32 s, float slope, I32 ahead) {
  if (args.softcap > 0) {  // tanh(x) = 1 - 2 / (1 + e^2x), which is 1 long before e^2x is 2^64
    const F32 twice = rounded_product(s, splat(args.softmax_scale / args.softcap * 2 * kLog2E));
    s = args.softcap * kLog2E * (1 - 2 / (1 + exp2(-max(splat(-64.0f), -twice))));
  } else {
    s = rounded_product(s, splat(args.softmax_scale * kLog2E));
  }
  if (slope != 0) s -= slope * kLog2E * __builtin_convertvector(ahead < 0 ? -ahead : ahead, F32);
  if (args.window_left >= 0) s = ahead > args.window_left ? splat(kNoKey) : s;
  if (args.window_right >= 0) s = -ahead > args.window_right ? splat(kNoKey) : s;
  return s;
}

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::attention
