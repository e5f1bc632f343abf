// Instructions of warpgroups, four warps each: registers moved between them and barriers by name.
#pragma once

#include <cstdint>

namespace kernelmint::ptx {

// Every warp of the warpgroup gives registers back, or takes them, until it has kRegisters a
// thread. PTX ISA, "setmaxnreg".
template <int kRegisters>
__device__ __forceinline__ void decrease_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void increase_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Barrier `id`, 1 to 15 (0 is __syncthreads'), over `threads` threads: waits for all of them, or
// arrives and goes on. PTX ISA, "bar".
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace kernelmint::ptx
