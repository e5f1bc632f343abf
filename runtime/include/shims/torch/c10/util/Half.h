// A shim of PyTorch's header: the parts that foreign kernels use, without PyTorch.
#pragma once

#include <c10/util/narrow_float.h>
#if defined(__CUDACC__)
#include <cuda_fp16.h>
#endif

namespace c10 {

struct alignas(2) Half : kernelmint::torch_shim::Arithmetic<Half> {
  struct from_bits_t {};
  static constexpr C10_HOST_DEVICE from_bits_t from_bits() { return {}; }

  Half() = default;
  constexpr C10_HOST_DEVICE Half(std::uint16_t bits, from_bits_t) : x(bits) {}

  // To the nearest, ties to even.
  C10_HOST_DEVICE Half(float value) {
#if defined(__CUDA_ARCH__)
    x = __half_as_ushort(__float2half_rn(value));
#else
    const auto bits = __builtin_bit_cast(std::uint32_t, value);
    const std::uint32_t magnitude = bits & 0x7fffffff;
    std::uint32_t rounded;
    if (magnitude > 0x7f800000)
      rounded = 0x7e00;
    else if (magnitude >= 0x477ff000)  // 65520 and above round to infinity
      rounded = 0x7c00;
    else if (magnitude < 113u << 23)  // beside 0.5 the last place is 2^-24: the addition rounds
      rounded = __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(float, magnitude) + 0.5f) -
                (126u << 23);
    else
      rounded = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    x = static_cast<std::uint16_t>(rounded | (bits >> 16 & 0x8000));
#endif
  }
  C10_HOST_DEVICE operator float() const {
#if defined(__CUDA_ARCH__)
    return __half2float(__builtin_bit_cast(__half, x));
#else
    const std::uint32_t magnitude = (x & 0x7fffu) << 13;
    const std::uint32_t sign = (x & 0x8000u) << 16;
    if (magnitude < 1u << 23) {  // fraction * 2^-24: 2^-14 + fraction * 2^-24 is a normal number
      const float value = __builtin_bit_cast(float, magnitude + (113u << 23)) - 0x1p-14f;
      return __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, value) | sign);
    }
    const std::uint32_t exponent = (magnitude < 31u << 23 ? 112u : 224u) << 23;
    return __builtin_bit_cast(float, (magnitude + exponent) | sign);
#endif
  }
#if defined(__CUDACC__)
  C10_HOST_DEVICE Half(const __half& value) : x(__builtin_bit_cast(std::uint16_t, value)) {}
  C10_HOST_DEVICE operator __half() const { return __builtin_bit_cast(__half, x); }
#endif

  std::uint16_t x;
};

#if defined(__CUDACC__)
inline __device__ Half __ldg(const Half* from) {
  return Half(::__ldg(reinterpret_cast<const std::uint16_t*>(from)), Half::from_bits());
}
#endif

}  // namespace c10

namespace at {
using c10::Half;
}

template <>
struct std::numeric_limits<c10::Half>
    : kernelmint::torch_shim::Limits<c10::Half, 11, 0x0400, 0x7bff, 0x1400, 0x7c00> {};
