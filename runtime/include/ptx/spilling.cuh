// Where a kernel spills its registers: PTX ISA, "Pragma Strings: enable_smem_spilling" (PTX
// ISA 9.0, nvcc 13.0).
#pragma once

namespace kernelmint::ptx {

// Lets ptxas spill a kernel's registers into shared memory, as far as there is room, before local
// memory; called at the kernel's beginning. The room is that of __launch_bounds__'s threads. ptxas
// takes none in a kernel with dynamic shared memory.
__device__ __forceinline__ void spill_into_shared_memory() {
  asm volatile(".pragma \"enable_smem_spilling\";");
}

}  // namespace kernelmint::ptx
