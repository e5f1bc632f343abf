// Counters in device memory by which thread blocks that share a head find out which is last. A
// launch finds its counters at zero and leaves them so; nothing clears them in between, since that
// would take another kernel, as long as a short decoding.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <vector>

#include "attention/flash_decode/sm80_scheduler.cuh"
#include "launch_counters.cuh"
#include "mutex.h"

namespace kernelmint::flash_decode::sm80 {

// A device's tickets: kMostThreadBlocks for each stream, and for each launch that a graph holds.
class Tickets {
 public:
  static Tickets& of_device(int device) {
    static std::array<Tickets, 64> all;
    return all[static_cast<std::size_t>(device) % all.size()];
  }

  // Finds the tickets for a launch on `stream`, on the current device.
  cudaError_t find(cudaStream_t stream, int*& tickets) {
    int index = 0;
    cudaError_t status = owners_.index_for(stream, index);
    if (status == cudaSuccess && index < 0) status = cudaErrorMemoryAllocation;
    if (status != cudaSuccess) return status;
    const Lock lock(mutex_);
    const std::size_t chunk = static_cast<std::size_t>(index) / kChunk;
    while (chunks_.size() <= chunk && status == cudaSuccess) status = grow();
    if (status == cudaSuccess)
      tickets = chunks_[chunk] + static_cast<std::size_t>(index) % kChunk * kMostThreadBlocks;
    return status;
  }

 private:
  static constexpr std::size_t kChunk = 256;  // launches; 1 MiB

  // Memory that stays. It is allocated on another stream, so that a capture does not hold it.
  cudaError_t grow() {
    const RelaxedCapture relaxed;
    constexpr std::size_t kBytes = kChunk * kMostThreadBlocks * sizeof(int);
    void* memory = nullptr;
    cudaStream_t stream = nullptr;
    cudaError_t status = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (status != cudaSuccess) return status;
    status = cudaMalloc(&memory, kBytes);
    if (status == cudaSuccess) status = cudaMemsetAsync(memory, 0, kBytes, stream);
    if (status == cudaSuccess) status = cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
    if (status == cudaSuccess) chunks_.push_back(static_cast<int*>(memory));
    return status;
  }

  LaunchCounters owners_{std::size_t{1} << 24};
  Mutex mutex_;
  std::vector<int*> chunks_;
};

}  // namespace kernelmint::flash_decode::sm80
