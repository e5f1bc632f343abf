// The logarithm that C++ has no fast name for.
#pragma once

namespace kernelmint::ptx {

// The binary logarithm; subnormals are flushed to zero, whose logarithm is -inf. At most 2^-22 off
// in all, relative to the larger one of itself and 1: PTX ISA, "lg2".
__device__ __forceinline__ float log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace kernelmint::ptx
