// TF32 products of one warp: PTX ISA, "Matrix Fragments for mma.m16n8k8".
#pragma once

#include <cstdint>

namespace kernelmint::ptx {

// d += a * b for a 16x8 `a`, an 8x8 `b` and a 16x8 `d`. Lane 4g + t holds, of a, (row g, column t),
// (g + 8, t), (g, t + 4), (g + 8, t + 4); of b, (row t, column g), (t + 4, g); and of d, the rows g
// and g + 8 at the columns 2t and 2t + 1. Operands are fp32 bits; the lowest 13 are ignored.
__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const std::uint32_t (&a)[4],
                                                 const std::uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

}  // namespace kernelmint::ptx
