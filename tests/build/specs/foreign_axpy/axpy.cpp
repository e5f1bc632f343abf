#include "foreign_axpy/axpy.h"

#include <axpy/combine.h>
#include <c10/util/Half.h>
#include <offset.h>

#if !defined(CHAR_BIT)
#error "cpu.yaml includes limits.h"
#endif

inline namespace KERNELMINT_ISA {

void axpy(float alpha, const float* x, const float* y, float* z, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i)
    z[i] = combine(alpha, x[i], y[i]) + at::Half(axpy_bias()) + third_party_offset;
}

bool axpy_is_fast_math() {
#if defined(__FAST_MATH__)
  return true;
#else
  return false;
#endif
}

bool axpy_has_avx2() {
#if defined(__AVX2__)
  return true;
#else
  return false;
#endif
}

}  // namespace KERNELMINT_ISA
