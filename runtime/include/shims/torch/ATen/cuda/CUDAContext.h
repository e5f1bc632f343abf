// A shim of PyTorch's header: the parts that foreign kernels use, without PyTorch. The stream of a
// call is its LaunchContext's.
#pragma once

#include <c10/cuda/CUDAException.h>

#include <vector>

namespace at::cuda {

// The properties of a device; -1: the current device.
inline const cudaDeviceProp* getDeviceProperties(int device) {
  static const std::vector<cudaDeviceProp> all = [] {
    int count = 0;
    C10_CUDA_CHECK(cudaGetDeviceCount(&count));
    std::vector<cudaDeviceProp> found(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) C10_CUDA_CHECK(cudaGetDeviceProperties(&found[i], i));
    return found;
  }();
  if (device == -1) C10_CUDA_CHECK(cudaGetDevice(&device));
  return &all.at(static_cast<std::size_t>(device));
}

inline const cudaDeviceProp* getCurrentDeviceProperties() { return getDeviceProperties(-1); }

}  // namespace at::cuda
