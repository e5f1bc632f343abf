// Atomics with the ordering that they need and no more: PTX ISA, "atom".
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

}  // namespace kernelmint::ptx
