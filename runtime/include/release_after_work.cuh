// CUDA objects that a launch makes and that its work uses after the launch has returned: texture
// objects, host memory from which the work copies.
#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <cstdint>
#include <new>

#include "cuda_launch.cuh"
#include "mutex.h"

namespace kernelmint {

// This library's objects that wait for the end of the work that uses them. A later launch releases
// the objects, since CUDA forbids callbacks of streams and graphs to call CUDA.
class ObjectsInUse {
 public:
  using Release = void (*)(std::uint64_t object);

  // Releases the objects whose work has ended, and adds `object`, which is in use until the work
  // that the call's stream has so far ends. If the stream captures, the object is in use as long as
  // the graph and its executables exist. The call's device must be current. After an error the
  // object is never released.
  cudaError_t add(std::uint64_t object, Release release, const LaunchContext& context) {
    const RelaxedCapture relaxed;
    const Lock lock(mutex_);
    release_unused(context.device);
    auto* entry = new (std::nothrow) Entry{object, release, context.device, first_};
    if (entry == nullptr) return cudaErrorMemoryAllocation;
    const auto stream = static_cast<cudaStream_t>(context.stream);
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    cudaGraph_t graph = nullptr;
    cudaUserObject_t owner = nullptr;
    cudaError_t status = cudaStreamGetCaptureInfo(stream, &capture, nullptr, &graph);
    if (status == cudaSuccess && capture != cudaStreamCaptureStatusNone) {
      status = cudaUserObjectCreate(&owner, entry, &graph_ended, 1, cudaUserObjectNoDestructorSync);
      if (status == cudaSuccess)
        status = cudaGraphRetainUserObject(graph, owner, 1, cudaGraphUserObjectMove);
    } else if (status == cudaSuccess) {
      status = cudaEventCreateWithFlags(&entry->work, cudaEventDisableTiming);
      if (status == cudaSuccess) status = cudaEventRecord(entry->work, stream);
    }
    if (status == cudaSuccess) first_ = entry;
    return status;
  }

 private:
  struct Entry {
    std::uint64_t object;
    Release release;
    int device;
    Entry* next;
    cudaEvent_t work = nullptr;  // null if a graph uses the object
    bool has_graph_ended = false;
  };

  static void CUDART_CB graph_ended(void* entry) {
    __atomic_store_n(&static_cast<Entry*>(entry)->has_graph_ended, true, __ATOMIC_RELEASE);
  }

  static bool is_unused(const Entry& entry) {
    return entry.work != nullptr ? cudaEventQuery(entry.work) == cudaSuccess
                                 : __atomic_load_n(&entry.has_graph_ended, __ATOMIC_ACQUIRE);
  }

  void release_unused(int device) {
    for (Entry** place = &first_; *place != nullptr;) {
      Entry* entry = *place;
      if (entry->device != device || !is_unused(*entry)) {
        place = &entry->next;
        continue;
      }
      *place = entry->next;
      entry->release(entry->object);
      if (entry->work != nullptr) cudaEventDestroy(entry->work);
      delete entry;
    }
    cudaGetLastError();  // cudaErrorNotReady is no error
  }

  Mutex mutex_;
  Entry* first_ = nullptr;
};

inline ObjectsInUse objects_in_use;

// Has a later launch call `kRelease(object)` after the work that the call's stream has so far. If
// the stream captures, the launch calls it after the graph and its executables are gone.
template <auto kRelease, class Object>
LaunchResult release_after_work(Object object, const LaunchContext& context) {
  const DeviceScope device(context.device);
  if (device.error != nullptr) return {device.error};
  const auto release = [](std::uint64_t bits) { kRelease(std::bit_cast<Object>(bits)); };
  const cudaError_t status =
      objects_in_use.add(std::bit_cast<std::uint64_t>(object), release, context);
  if (status == cudaSuccess) return {};
  cudaGetLastError();  // otherwise PyTorch's next check reports the error
  return {cudaGetErrorString(status)};
}

}  // namespace kernelmint
