// A shim of PyTorch's header: the parts that foreign kernels use, without PyTorch. An exception
// that leaves a launch is the call's error.
#pragma once

#include <c10/util/Exception.h>
#include <cuda_runtime.h>

#define C10_CUDA_CHECK(...)                                                                    \
  do {                                                                                         \
    if (const cudaError_t status = (__VA_ARGS__); C10_UNLIKELY(status != cudaSuccess)) {       \
      [[maybe_unused]] const cudaError_t taken = cudaGetLastError(); /* or PyTorch finds it */ \
      kernelmint::torch_shim::fail("CUDA error: ", cudaGetErrorString(status), " (", __FILE__, \
                                   ":", __LINE__, ")");                                        \
    }                                                                                          \
  } while (false)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())
