// Products of one warpgroup, four warps, on operands in shared memory: PTX ISA, "Asynchronous
// Warpgroup Level Matrix Instructions". They run beside the code after them until they are waited
// for.
#pragma once

#include <cstdint>

namespace kernelmint::ptx {

// d = a b, or d += a b, of a 64 x 16 `a` and a 16 x N `b` of T; d, 64 x N, in fp32. The products
// that a target's spec names under `wgmma:` are generated, <family>/<target>_wgmma.cuh:
//   shared_shared(d, a, b, accumulate)         both operands by descriptor, K-major
//   registers_shared(d, a, b, accumulate)      a's fragment in registers, b by descriptor, K-major
//   registers_transposed(d, a, b, accumulate)  the same, b MN-major
//   shared_transposed(d, a, b, accumulate)     both by descriptor, a K-major, b MN-major
//   transposed_shared(d, a, b, accumulate)     both by descriptor, a MN-major, b K-major
//   transposed_transposed(d, a, b, accumulate) both by descriptor, both MN-major
template <class T, int N>
struct Wgmma;

// A matrix in shared memory whose rows of 128 bytes are swizzled in blocks of eight (16-byte chunk
// XOR row % 8), as TMA leaves them; `address` of a tile's first row is a multiple of 1024. PTX ISA,
// "Matrix Descriptor Format".
//
// `panel_bytes` is from one panel of 64 16-bit columns to the next; it matters to an operand whose
// N or M runs along the rows' 128 bytes (MN-major), and to no other.
//
// Rows of 64 bytes, of panels of 32 columns, are swizzled by chunk XOR row / 2 % 4; their address
// is a multiple of 512.
template <int kRowBytes = 128>
__device__ __forceinline__ std::uint64_t swizzled_descriptor(std::uint32_t address,
                                                             std::uint32_t panel_bytes = 16) {
  static_assert(kRowBytes == 128 || kRowBytes == 64);
  constexpr std::uint64_t kEightRows = 8 * kRowBytes, kSwizzle = kRowBytes == 128 ? 1 : 2;
  return (address & 0x3ffff) >> 4 | static_cast<std::uint64_t>(panel_bytes >> 4) << 16 |
         kEightRows >> 4 << 32 | kSwizzle << 62;
}

// The descriptor of the operand `bytes` further. The address, in 16 bytes, is in the low word and
// does not carry: one addition between two products, which may be no longer than four instructions.
__device__ __forceinline__ std::uint64_t advance(std::uint64_t descriptor, std::uint32_t bytes) {
  const std::uint32_t low = static_cast<std::uint32_t>(descriptor) + (bytes >> 4);
  return descriptor >> 32 << 32 | low;
}

// The same by one addition of 64 bits, for which ptxas keeps fewer registers in a loop with many
// descriptors.
__device__ __forceinline__ std::uint64_t advance_wide(std::uint64_t descriptor,
                                                      std::uint32_t bytes) {
  return descriptor + (bytes >> 4);
}

// Registers that were written before belong to the products that follow.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until all groups but the last `kPending` are complete.
template <int kPending>
__device__ __forceinline__ void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Neither side of this line may read or write `registers` on the other: products in flight use
// registers in ways that the compiler does not see.
template <int kCount>
__device__ __forceinline__ void pin(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

template <int kCount>
__device__ __forceinline__ void pin(std::uint32_t (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

}  // namespace kernelmint::ptx
