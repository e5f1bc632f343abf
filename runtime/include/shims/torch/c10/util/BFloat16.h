// A shim of PyTorch's header: the parts that foreign kernels use, without PyTorch.
#pragma once

#include <c10/util/narrow_float.h>
#if defined(__CUDACC__)
#include <cuda_bf16.h>
#endif

namespace c10 {

struct alignas(2) BFloat16 : kernelmint::torch_shim::Arithmetic<BFloat16> {
  struct from_bits_t {};
  static constexpr C10_HOST_DEVICE from_bits_t from_bits() { return {}; }

  BFloat16() = default;
  constexpr C10_HOST_DEVICE BFloat16(std::uint16_t bits, from_bits_t) : x(bits) {}

  // To the nearest, ties to even.
  C10_HOST_DEVICE BFloat16(float value) {
#if defined(__CUDA_ARCH__)
    x = __bfloat16_as_ushort(__float2bfloat16_rn(value));
#else
    const auto bits = __builtin_bit_cast(std::uint32_t, value);
    const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
    x = static_cast<std::uint16_t>(is_nan ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif
  }
  C10_HOST_DEVICE operator float() const {
#if defined(__CUDA_ARCH__)  // PyTorch's own choice, so that kernels are the same machine code
    return __bfloat162float(__builtin_bit_cast(__nv_bfloat16, x));
#else
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(x) << 16);
#endif
  }
#if defined(__CUDACC__)
  C10_HOST_DEVICE BFloat16(const __nv_bfloat16& value)
      : x(__builtin_bit_cast(std::uint16_t, value)) {}
  explicit C10_HOST_DEVICE operator __nv_bfloat16() const {
    return __builtin_bit_cast(__nv_bfloat16, x);
  }
#endif

  std::uint16_t x;
};

#if defined(__CUDACC__)
inline __device__ BFloat16 __ldg(const BFloat16* from) {
  return BFloat16(::__ldg(reinterpret_cast<const std::uint16_t*>(from)), BFloat16::from_bits());
}
#endif

}  // namespace c10

namespace at {
using c10::BFloat16;
}

template <>
struct std::numeric_limits<c10::BFloat16>
    : kernelmint::torch_shim::Limits<c10::BFloat16, 8, 0x0080, 0x7f7f, 0x3c00, 0x7f80> {};
