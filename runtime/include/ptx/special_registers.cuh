// Registers of the hardware that C++ reads too, but not quite like this.
#pragma once

namespace kernelmint::ptx {

// blockIdx.x and threadIdx.x, read anew each time: values that follow from them are computed again
// after a long loop, instead of being kept in registers throughout.
__device__ __forceinline__ unsigned reread_block_index() {
  unsigned index;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
  return index;
}

__device__ __forceinline__ unsigned reread_thread_index() {
  unsigned index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

// `value`, as if it were new: values that follow from it are computed again, not kept from last
// time.
__device__ __forceinline__ unsigned recomputed(unsigned value) {
  asm volatile("" : "+r"(value));
  return value;
}

}  // namespace kernelmint::ptx
