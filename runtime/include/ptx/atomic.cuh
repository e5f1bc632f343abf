// Atomics with the ordering that they need and no more: PTX ISA, "atom", "ld", "st".
#pragma once

namespace kernelmint::ptx {

// Adds to a counter in global memory and returns what was there. What this thread wrote, and what
// it has seen other threads write, can be seen by whoever adds later, and the other way round.
__device__ __forceinline__ int atomic_add_acquire_release(int* counter, int value) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(value)
               : "memory");
  return before;
}

// What was written before a release of a counter is seen after an acquiring load of what it stored.
__device__ __forceinline__ unsigned load_acquire(const unsigned* counter) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}
__device__ __forceinline__ void store_release(unsigned* counter, unsigned value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}

}  // namespace kernelmint::ptx
