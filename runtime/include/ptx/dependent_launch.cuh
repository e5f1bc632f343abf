// Starting a kernel before the one ahead of it on the stream has ended, from compute capability 9.0
// on; before that these do nothing. PTX ISA, "griddepcontrol"; CUDA C++ Programming Guide,
// "Programmatic Dependent Launch".
#pragma once

namespace kernelmint::ptx {

// The next kernel, if it was launched to, may start as soon as all thread blocks have said this or
// ended. It may rely only on wait_for_kernel_ahead().
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the kernel ahead has ended and its writes can be seen.
__device__ __forceinline__ void wait_for_kernel_ahead() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace kernelmint::ptx
