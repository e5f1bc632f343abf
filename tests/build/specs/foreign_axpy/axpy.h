// What the sources beside this header define: plain functions, no templates.
#pragma once

#include <cstdint>

#if !defined(AXPY_IS_BUILT)
#error "family.yaml defines AXPY_IS_BUILT"
#endif

float axpy_bias();

inline namespace KERNELMINT_ISA {  // cpu.yaml's source is compiled for each instruction set
void axpy(float alpha, const float* x, const float* y, float* z, std::int64_t n);
bool axpy_is_fast_math();
bool axpy_has_avx2();
}  // namespace KERNELMINT_ISA
