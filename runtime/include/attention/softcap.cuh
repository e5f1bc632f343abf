// Softcap on a GPU.
#pragma once

#include "attention/softcap.h"
#include "ptx/math.cuh"

namespace kernelmint::attention {

// A usable cap, and the factors that are the same for all scores. It works without predicates, on
// one value at a time: registers are scarce where it is called.
class Softcap {
 public:
  __device__ __forceinline__ explicit Softcap(float cap) : cap_(cap), reciprocal_(1 / cap) {}

  // cap * tanh(score / cap); NaN of NaN.
  __device__ __forceinline__ float operator()(float score) const {
    const float x = ptx::clamp(score * reciprocal_, kTanhIsOne);
    float above, below;
    tanh_quotient(x, above, below);
    return cap_ * x * (above * ptx::reciprocal(below));
  }

 private:
  float cap_, reciprocal_;
};

}  // namespace kernelmint::attention
