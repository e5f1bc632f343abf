// Launching CUDA kernels: the functions that generated launches call, and that a header with its
// own launch<Config, Isa> may call.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "launch.h"
#include "message.h"
#include "mutex.h"

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

// While it lives, the thread may call functions that a capture refuses although they add nothing to
// the graph.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// How many there are along each axis.
struct Extents {
  std::int64_t x = 1, y = 1, z = 1;

  constexpr std::int64_t product() const { return x * y * z; }
};

// How a kernel is launched.
struct CudaLaunch {
  Extents grid;                    // thread blocks
  Extents block;                   // threads of a block
  std::int64_t shared_memory = 0;  // dynamic, bytes of a block
  Extents cluster{};               // blocks of a cluster, from compute capability 9.0 on; 1: none
  // True if the kernel may start before the kernel ahead of it on the stream has ended, from
  // compute capability 9.0 on: it must then wait for that kernel (ptx/dependent_launch.cuh).
  bool dependent = false;
  // True if all blocks run at the same time, so that they can wait for each other
  // (cooperative_groups::this_grid().sync()): at most max_resident_blocks() of them.
  bool cooperative = false;
};

// The reason why CUDA does not take a launch, whatever the kernel; null if CUDA takes it. (Each
// extent is looked at before products are, which then fit.)
inline const char* why_invalid(const CudaLaunch& launch, std::int64_t max_shared_memory) {
  const auto& [grid, block, shared_memory, cluster, dependent, cooperative] = launch;
  const auto within = [](const Extents& extents, std::int64_t x, std::int64_t y, std::int64_t z) {
    return extents.x >= 1 && extents.y >= 1 && extents.z >= 1 && extents.x <= x && extents.y <= y &&
           extents.z <= z;
  };
  const auto refuse = [](const char* format, const Extents& e) {
    return message(format, static_cast<long long>(e.x), static_cast<long long>(e.y),
                   static_cast<long long>(e.z));
  };
  if (grid.x == 0 || grid.y == 0 || grid.z == 0)
    return "the launch grid is empty, since an extent is 0, but there are outputs to write";
  if (!within(grid, INT32_MAX, 65535, 65535))
    return refuse(
        "got a launch grid of %lld x %lld x %lld, expected at most 2^31-1 x 65535 x "
        "65535, CUDA's limits: split the batch",
        grid);
  if (!within(block, 1024, 1024, 64) || block.product() > 1024)
    return refuse(
        "got a block of %lld x %lld x %lld threads, expected 1 to 1024 in all, at most "
        "64 of them along z",
        block);
  if (!within(cluster, 8, 8, 8) || cluster.product() > 8)
    return refuse("got a cluster of %lld x %lld x %lld thread blocks, expected 1 to 8 in all",
                  cluster);
  if (grid.x % cluster.x != 0 || grid.y % cluster.y != 0 || grid.z % cluster.z != 0)
    return refuse("got a launch grid of %lld x %lld x %lld, expected multiples of the cluster",
                  grid);
  if (shared_memory < 0 || shared_memory > max_shared_memory)
    return message(
        "got %lld bytes of shared memory, expected at most the %lld that a block may "
        "have on this device",
        static_cast<long long>(shared_memory), static_cast<long long>(max_shared_memory));
  return nullptr;
}

// A kernel's opt-in to more than 48 KiB of dynamic shared memory: asked for once a device, and
// again if a launch needs more than those before.
class SharedMemoryOptIn {
 public:
  cudaError_t allow(const void* kernel, int device, int bytes) {
    if (bytes <= 48 * 1024) return cudaSuccess;
    const bool is_kept = device < kDevices;
    const Lock lock(mutex_);
    if (is_kept && allowed_[device] >= bytes) return cudaSuccess;
    const cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status == cudaSuccess && is_kept) allowed_[device] = bytes;
    return status;
  }

 private:
  static constexpr int kDevices = 16;
  Mutex mutex_;
  int allowed_[kDevices] = {};
};

template <auto kKernel>
inline SharedMemoryOptIn shared_memory_opt_in;

// A launch as CUDA takes it.
struct CudaLaunchConfig {
  CudaLaunchConfig(const CudaLaunch& launch, const LaunchContext& context) {
    const auto extents = [](const Extents& e) {
      return dim3(static_cast<unsigned>(e.x), static_cast<unsigned>(e.y),
                  static_cast<unsigned>(e.z));
    };
    config.gridDim = extents(launch.grid);
    config.blockDim = extents(launch.block);
    config.dynamicSmemBytes = static_cast<std::size_t>(launch.shared_memory);
    config.stream = static_cast<cudaStream_t>(context.stream);
    config.attrs = attributes;
    if (launch.cluster.product() > 1) {
      cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
      cluster.id = cudaLaunchAttributeClusterDimension;
      cluster.val.clusterDim = {static_cast<unsigned>(launch.cluster.x),
                                static_cast<unsigned>(launch.cluster.y),
                                static_cast<unsigned>(launch.cluster.z)};
    }
    if (launch.dependent) {
      cudaLaunchAttribute& dependent = attributes[config.numAttrs++];
      dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      dependent.val.programmaticStreamSerializationAllowed = 1;
    }
    if (launch.cooperative) {
      cudaLaunchAttribute& cooperative = attributes[config.numAttrs++];
      cooperative.id = cudaLaunchAttributeCooperative;
      cooperative.val.cooperative = 1;
    }
  }
  CudaLaunchConfig(const CudaLaunchConfig&) = delete;
  CudaLaunchConfig& operator=(const CudaLaunchConfig&) = delete;

  cudaLaunchAttribute attributes[3];
  cudaLaunchConfig_t config = {};
};

// How many clusters of a launch of `kKernel` the call's device, which is current, holds at once: 0
// if it has none, or if the kernel's code is of an architecture without. It is asked once for each
// device and size of a cluster, by a launch of any grid, and of the same block and shared memory.
template <auto kKernel>
int resident_clusters(const CudaLaunch& launch, const LaunchContext& context) {
  static Mutex mutex;
  static int kept[16][9] = {};  // and one more; 0: not asked yet
  const std::int64_t blocks = launch.cluster.product();
  if (why_invalid(launch, context.facts.max_shared_memory) != nullptr) return 0;
  const auto ask = [&] {
    const auto* kernel = reinterpret_cast<const void*>(kKernel);
    const CudaLaunchConfig made(launch, context);
    cudaFuncAttributes attributes = {};
    int clusters = 0;
    cudaError_t status = cudaFuncGetAttributes(&attributes, kernel);
    if (status == cudaSuccess && attributes.binaryVersion < 90) return 0;
    if (status == cudaSuccess)
      status = shared_memory_opt_in<kKernel>.allow(kernel, context.device,
                                                   static_cast<int>(launch.shared_memory));
    if (status == cudaSuccess)
      status = cudaOccupancyMaxActiveClusters(&clusters, kernel, &made.config);
    if (status == cudaSuccess) return clusters;
    cudaGetLastError();  // else PyTorch's next check finds it
    return 0;
  };
  if (context.device >= 16) return ask();
  const Lock lock(mutex);
  int& known = kept[context.device][blocks];
  if (known == 0) known = ask() + 1;
  return known - 1;
}

// The number of blocks that a device holds at once, or why CUDA cannot tell.
struct ResidentBlocks {
  std::int64_t count = 0;  // at least 1 if there is no error
  const char* error = nullptr;
};

// Returns the number of blocks of a launch of `kKernel` that the call's device holds at once,
// whatever the grid of `launch` is: the most that a cooperative launch may have.
template <auto kKernel>
ResidentBlocks max_resident_blocks(CudaLaunch launch, const LaunchContext& context) {
  launch.grid = launch.cluster;
  if (const char* reason = why_invalid(launch, context.facts.max_shared_memory))
    return {.error = reason};
  const DeviceScope device(context.device);
  if (device.error != nullptr) return {.error = device.error};
  std::int64_t count = 0;
  if (launch.cluster.product() > 1) {
    count = resident_clusters<kKernel>(launch, context) * launch.cluster.product();
  } else {
    const auto* kernel = reinterpret_cast<const void*>(kKernel);
    int of_multiprocessor = 0;
    cudaError_t status = shared_memory_opt_in<kKernel>.allow(
        kernel, context.device, static_cast<int>(launch.shared_memory));
    if (status == cudaSuccess)
      status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
          &of_multiprocessor, kernel, static_cast<int>(launch.block.product()),
          static_cast<std::size_t>(launch.shared_memory));
    if (status != cudaSuccess) {
      cudaGetLastError();  // else PyTorch's next check finds it
      return {.error = cudaGetErrorString(status)};
    }
    count = of_multiprocessor * context.facts.sm_count;
  }
  if (count > 0) return {count};
  return {.error = message(
              "got blocks of %lld threads and %lld bytes of dynamic shared memory, in clusters of "
              "%lld, expected what this device has room for once: use fewer registers, threads or "
              "bytes",
              static_cast<long long>(launch.block.product()),
              static_cast<long long>(launch.shared_memory),
              static_cast<long long>(launch.cluster.product()))};
}

// Returns the error of a cooperative launch that the call's device, which is current, cannot run.
template <auto kKernel>
LaunchResult check_cooperative(const CudaLaunch& launch, const LaunchContext& context) {
  int can = 0;
  if (cudaDeviceGetAttribute(&can, cudaDevAttrCooperativeLaunch, context.device) != cudaSuccess ||
      can == 0)
    return {"this device has no cooperative launches (cudaDevAttrCooperativeLaunch)"};
  const ResidentBlocks resident = max_resident_blocks<kKernel>(launch, context);
  if (resident.error != nullptr) return {resident.error};
  const auto& [x, y, z] = launch.grid;
  if (x <= resident.count && x * y <= resident.count && x * y * z <= resident.count) return {};
  return {
      message("got a cooperative launch of %lld x %lld x %lld blocks, expected at most the %lld "
              "that this device holds at once: bound the grid by max_resident_blocks",
              static_cast<long long>(x), static_cast<long long>(y), static_cast<long long>(z),
              static_cast<long long>(resident.count))};
}

// Launches `kKernel` on the caller's stream and device. Never synchronises; safe under stream
// capture. What CUDA refuses is an error of the result, and not left for the next call to find.
template <auto kKernel, class... Arguments>
LaunchResult launch_cuda(const CudaLaunch& launch, const LaunchContext& context,
                         const Arguments&... arguments) {
  if (const char* reason = why_invalid(launch, context.facts.max_shared_memory)) return {reason};
  const DeviceScope device(context.device);
  if (device.error != nullptr) return {device.error};
  if (launch.cooperative) {
    const LaunchResult fits = check_cooperative<kKernel>(launch, context);
    if (fits.error != nullptr) return fits;
  }
  const CudaLaunchConfig made(launch, context);
  cudaError_t status =
      shared_memory_opt_in<kKernel>.allow(reinterpret_cast<const void*>(kKernel), context.device,
                                          static_cast<int>(launch.shared_memory));
  if (status == cudaSuccess) status = cudaLaunchKernelEx(&made.config, kKernel, arguments...);
  if (status == cudaSuccess) return {};
  cudaGetLastError();  // else PyTorch's next check finds it
  return {cudaGetErrorString(status)};
}

}  // namespace kernelmint
