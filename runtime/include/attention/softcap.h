// Softcap: scores become cap * tanh(score / cap).
#pragma once

#include "attributes.h"

namespace kernelmint::attention {

// A cap as kernels take it. An infinite cap, which no score reaches, counts as no cap, 0; and no
// reciprocal is infinite: so small a cap leaves nothing of any score.
KERNELMINT_HOST_DEVICE KERNELMINT_ALWAYS_INLINE float usable_cap(float cap) {
  constexpr float kLeast = 0x1p-126f;
  if (!(cap > 0 && cap < __builtin_inff())) return 0;
  return cap < kLeast ? kLeast : cap;
}

// Where tanh is 1 but for an ulp.
inline constexpr float kTanhIsOne = 8.6f;

// The numerator and the denominator of tanh(x) / x for |x| < kTanhIsOne, of a float or a vector.
// Both are 1 at 0; of all polynomials of degree 4 in x^2 these have the quotient of the least
// greatest relative error, 1.4e-8. Rounding makes 3 ulp of that for |x| < 1, and 6 at most.
// So a capped score is right relative to the score, however far above it the cap is.
template <class Value>
KERNELMINT_HOST_DEVICE KERNELMINT_ALWAYS_INLINE void tanh_quotient(Value x, Value& above,
                                                                   Value& below) {
  const Value square = x * x;
  above = square * 0x1.e609a4p-27f + 0x1.633p-16f;
  above = above * square + 0x1.ce9ddep-9f;
  above = above * square + 0x1.12a086p-3f;
  above = above * square + 1.0f;
  below = square * 0x1.b2b864p-21f + 0x1.5e59fap-12f;
  below = below * square + 0x1.aa142cp-6f;
  below = below * square + 0x1.dea592p-2f;
  below = below * square + 1.0f;
}

}  // namespace kernelmint::attention
