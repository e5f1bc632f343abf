// Copies of contiguous memory by the tensor memory accelerator: PTX ISA, "cp.async.bulk",
// "cp.reduce.async.bulk". Addresses and sizes are multiples of 16 bytes.
#pragma once

#include <cstdint>

namespace kernelmint::ptx {

// Reads `bytes` to `destination` in shared memory and completes them on `barrier`.
__device__ __forceinline__ void bulk_load(std::uint32_t destination, const void* source, int bytes,
                                          std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(destination),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}

// Writes `source` in shared memory, or adds it float by float, as part of the thread's current bulk
// group; `policy` is what L2 does with the lines. What other threads stored there must have passed
// fence_async_shared().
__device__ __forceinline__ void bulk_store(float* destination, std::uint32_t source, int bytes,
                                           std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(
          destination),
      "r"(source), "r"(bytes), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void bulk_add(float* destination, std::uint32_t source, int bytes,
                                         std::uint64_t policy) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.add.f32 "
      "[%0], [%1], %2, %3;" ::"l"(destination),
      "r"(source), "r"(bytes), "l"(policy)
      : "memory");
}

// Waits until the thread's bulk groups but the last `kPending` are complete: their writes are
// there.
template <int kPending>
__device__ __forceinline__ void bulk_wait_group() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

// Orders the thread's accesses of global memory and the accesses of asynchronous copies that it
// requests. PTX ISA, "fence.proxy.async".
__device__ __forceinline__ void fence_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

}  // namespace kernelmint::ptx
