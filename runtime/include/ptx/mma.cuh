// Tensor core products of one warp: mma.sync, PTX ISA, "Matrix Fragments for mma.m16n8k16".
#pragma once

#include <cstdint>

#include "dtypes.h"

namespace kernelmint::ptx {

// d += a * b for a 16x16 `a`, a 16x8 `b` (both 16-bit) and a 16x8 `d` in fp32. Lane l holds, of d,
// rows l/4 and l/4 + 8 at columns 2 (l%4) and 2 (l%4) + 1, as {d[0], d[1]} and {d[2], d[3]}. Packed
// in pairs, the values of two neighbouring d are an a: {row, row + 8} x {columns 0-7, columns
// 8-15}.
template <class T>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4],
                                             std::uint32_t b0, std::uint32_t b1);

template <>
__device__ __forceinline__ void mma_m16n8k16<bf16>(float (&d)[4], const std::uint32_t (&a)[4],
                                                   std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void mma_m16n8k16<fp16>(float (&d)[4], const std::uint32_t (&a)[4],
                                                   std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace kernelmint::ptx
