// Copies of boxes of a tensor by the tensor memory accelerator: PTX ISA, "cp.async.bulk.tensor".
// A box lies in shared memory as its tensor map says; parts of it outside the tensor are read as
// zeros and are not written.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "ptx/cache_policy.cuh"

namespace kernelmint::ptx {

__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Reads the box at (c0, c1, c2, c3), fastest dimension first, to `destination` in shared memory and
// completes its bytes on `barrier`.
__device__ __forceinline__ void tma_load_4d(std::uint32_t destination, const CUtensorMap& map,
                                            std::uint32_t barrier, std::uint64_t policy, int c0,
                                            int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%4, %5, %6, %7}], [%2], %3;" ::"r"(destination),
      "l"(&map), "r"(barrier), "l"(policy), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

// The same of a tensor of five dimensions.
__device__ __forceinline__ void tma_load_5d(std::uint32_t destination, const CUtensorMap& map,
                                            std::uint32_t barrier, std::uint64_t policy, int c0,
                                            int c1, int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%4, %5, %6, %7, %8}], [%2], %3;" ::"r"(destination),
      "l"(&map), "r"(barrier), "l"(policy), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

// Writes `source` in shared memory to the box at (c0, c1, c2, c3, c4), as part of the thread's
// current bulk group. What other threads stored there must have passed fence_async_shared().
__device__ __forceinline__ void tma_store_5d(const CUtensorMap& map, std::uint32_t source, int c0,
                                             int c1, int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::
          "l"(&map),
      "r"(source), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

__device__ __forceinline__ void bulk_commit_group() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until the thread's bulk groups but the last `kPending` have read their sources.
template <int kPending>
__device__ __forceinline__ void bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// The thread's ordinary accesses of shared memory come before the reads and writes of asynchronous
// copies and wgmma there after a barrier that follows. PTX ISA, "fence.proxy.async".
__device__ __forceinline__ void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace kernelmint::ptx
