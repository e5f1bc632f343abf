// Barriers in shared memory: PTX ISA, "mbarrier". A phase ends when all expected arrivals have come
// and all bytes that were announced have been written. Barriers are named by their shared address.
#pragma once

#include <cstdint>

namespace kernelmint::ptx {

__device__ __forceinline__ void mbarrier_init(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the asynchronous proxy; a __syncthreads() must follow.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives, and announces `bytes` that asynchronous copies will complete on the barrier.
__device__ __forceinline__ void mbarrier_arrive_expecting(std::uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// Arrives, as an expected arrival, as soon as all of this thread's cp.async before are done. PTX
// ISA, "cp.async.mbarrier.arrive".
__device__ __forceinline__ void mbarrier_arrive_after_copies(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Waits until the phase of that parity has ended. What was written before its arrivals is visible.
__device__ __forceinline__ void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "wait:\n"
#if __CUDA_ARCH__ >= 900
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
#else
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%0], %1;\n"
#endif
      "@done bra.uni over;\n"
      "bra.uni wait;\n"
      "over:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

}  // namespace kernelmint::ptx
