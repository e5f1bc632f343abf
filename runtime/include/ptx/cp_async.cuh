// Asynchronous copies from global to shared memory, 16 bytes at a time: PTX ISA,
// "cp.async". Both addresses must be multiples of 16.
#pragma once

#include <cstdint>

#include "ptx/cache_policy.cuh"

namespace kernelmint::ptx {

__device__ __forceinline__ void cp_async_16(std::uint32_t destination, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(destination), "l"(source)
               : "memory");
}

// If `valid` is false nothing is read and the 16 bytes become zero: src-size counts the bytes to
// copy, and the rest of cp-size is filled with zeros.
__device__ __forceinline__ void cp_async_16_or_zero(std::uint32_t destination, const void* source,
                                                    bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source),
               "r"(valid ? 16 : 0)
               : "memory");
}

// The same, with a cache policy.
__device__ __forceinline__ void cp_async_16_or_zero(std::uint32_t destination, const void* source,
                                                    bool valid, std::uint64_t policy) {
  asm volatile(
      "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(destination),
      "l"(source), "r"(valid ? 16 : 0), "l"(policy)
      : "memory");
}

// Ends a group of this thread's copies, which may be empty.
__device__ __forceinline__ void cp_async_commit_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits for this thread's groups but the last `kPending`; other threads see them after a barrier.
template <int kPending>
__device__ __forceinline__ void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Waits for all copies of this thread; other threads see them after a barrier.
__device__ __forceinline__ void cp_async_wait_all() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace kernelmint::ptx
