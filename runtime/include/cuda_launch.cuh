// Launching a CUDA kernel from a generated shard.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>

#include "launch.h"

namespace kernelmint {

// Makes `device` the calling thread's current one while it lives. `error` says why it could not.
struct DeviceScope {
  explicit DeviceScope(int device) : wanted(device) {
    cudaError_t status = cudaGetDevice(&previous);
    if (status == cudaSuccess && previous != wanted) status = cudaSetDevice(wanted);
    if (status != cudaSuccess) error = cudaGetErrorString(status);
  }
  ~DeviceScope() {
    if (error == nullptr && previous != wanted) cudaSetDevice(previous);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  int wanted, previous = -1;
  const char* error = nullptr;
};

// One extent of the grid, checked against the limit of its axis.
struct Grid {
  std::int64_t x = 1, y = 1, z = 1;
};

// Launches `kernel` on the caller's stream and device. Never synchronises; safe under stream
// capture. The opt-in to more than 48 KiB of dynamic shared memory is made once per device.
template <class Args>
LaunchResult launch_cuda(void (*kernel)(const Args), Grid grid, int threads, int shared_memory,
                         const Args& args, const LaunchContext& context,
                         std::atomic<std::uint64_t>& devices_ready) {
  if (grid.x > INT32_MAX || grid.y > 65535 || grid.z > 65535)
    return {"the launch grid exceeds CUDA's limits (2^31-1, 65535, 65535): split the batch"};
  if (grid.x < 1 || grid.y < 1 || grid.z < 1)
    return {"the launch grid is empty, since an extent is 0, but there are outputs to write"};
  const DeviceScope device(context.device);
  if (device.error != nullptr) return {device.error};
  cudaError_t status = cudaSuccess;
  const std::uint64_t bit = std::uint64_t{1} << (context.device & 63);
  if (shared_memory > 48 * 1024 &&
      (context.device > 63 || !(devices_ready.load(std::memory_order_relaxed) & bit))) {
    status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_memory);
    if (status == cudaSuccess) devices_ready.fetch_or(bit, std::memory_order_relaxed);
  }
  if (status == cudaSuccess) {
    const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                      static_cast<unsigned>(grid.z));
    kernel<<<blocks, threads, shared_memory, static_cast<cudaStream_t>(context.stream)>>>(args);
    status = cudaGetLastError();
  }
  return {status == cudaSuccess ? nullptr : cudaGetErrorString(status)};
}

}  // namespace kernelmint
