// Counters in device memory for the thread blocks of one launch. A kernel finds its counter at zero
// and must leave it so; nothing clears it between launches.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "cuda_launch.cuh"
#include "mutex.h"

namespace kernelmint {

// Hands out the elements of an array on one device. Launches on a stream follow each other, so they
// share one. A captured launch has its own element, since a graph may run beside anything but
// itself. Stream ids are not used twice, as addresses of streams are.
class LaunchCounters {
 public:
  explicit LaunchCounters(std::size_t count) : count_(count) {}

  // The index of the counter for a launch on `stream`, on the current device; -1 if none is
  // left.
  cudaError_t index_for(cudaStream_t stream, int& index) {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (const cudaError_t status = cudaStreamIsCapturing(stream, &capture); status != cudaSuccess)
      return status;
    if (capture != cudaStreamCaptureStatusNone) {  // a stream that captures has no id to ask for
      const Lock lock(mutex_);
      index = next();
      return cudaSuccess;
    }
    unsigned long long id = 0;
    if (const cudaError_t status = cudaStreamGetId(stream, &id); status != cudaSuccess)
      return status;
    const Lock lock(mutex_);
    Owner*& first = by_stream_[id % kLists];
    const Owner* owner = first;
    while (owner != nullptr && owner->stream != id) owner = owner->next;
    if (owner == nullptr) owner = first = new Owner{id, next(), first};
    index = owner->index;
    return cudaSuccess;
  }

 private:
  struct Owner {
    unsigned long long stream;
    int index;
    Owner* next;
  };
  static constexpr std::size_t kLists = 256;

  int next() { return used_ < count_ ? static_cast<int>(used_++) : -1; }

  const std::size_t count_;
  Mutex mutex_;
  // Lists, since every file of kernels that includes <unordered_map> takes half a second longer to
  // compile. They stay: a launch may come as late as the process ends.
  Owner* by_stream_[kLists] = {};
  std::size_t used_ = 0;
};

}  // namespace kernelmint
