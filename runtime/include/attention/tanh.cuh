// The tanh of a capped score that becomes a 16-bit probability.
#pragma once

#include "ptx/math.cuh"

namespace kernelmint::attention {

// tanh(x), right to 2e-6 relative to it: of quotients of polynomials of degree 3 in x^2 the one of
// the least greatest relative error for |x| <= 7, which is 1.03e-6. It is 1 where x is cut off, but
// for an ulp. NaN of NaN.
__device__ __forceinline__ float fast_tanh(float x) {
  x = ptx::clamp(x, 7.05f);
  const float square = x * x;
  float above = square * 3.9958616e-06f + 2.2930867e-03f;
  above = above * square + 1.2322052e-01f;
  above = above * square + 9.9999897e-01f;
  float below = square * 1.4398423e-04f + 2.1151604e-02f;
  below = below * square + 4.5654613e-01f;
  below = below * square + 1;
  return x * (above * ptx::reciprocal(below));
}

}  // namespace kernelmint::attention
