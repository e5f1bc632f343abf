// The C++ types behind a spec's dtype names, for device code and for the host.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace kernelmint {

#if defined(__CUDACC__)
using bf16 = __nv_bfloat16;
using fp16 = __half;
#else
// Storage only: CPU kernels convert whole vectors, in the instruction set they are compiled for.
struct bf16 {
  std::uint16_t bits;
};
struct fp16 {
  std::uint16_t bits;
};
#endif
using f32 = float;
using f64 = double;
using i8 = std::int8_t;
using u8 = std::uint8_t;
using i32 = std::int32_t;
using i64 = std::int64_t;

}  // namespace kernelmint
