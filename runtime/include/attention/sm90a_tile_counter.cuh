// Dynamic scheduling: which tile a persistent thread block takes next.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "launch.h"
#include "launch_counters.cuh"

namespace kernelmint::attention::sm90a {

// Thread blocks that are done take their next tile from here. Zero between kernels: the block that
// ends last leaves it so.
struct TileCounter {
  unsigned taken, blocks_done;
};

// The order in which a thread block takes indices; for its producer. The first index is the block's
// own. Dynamic scheduling then gives the next index to the block that asks first; static scheduling
// goes round in a fixed order.
class TileScheduler {
 public:
  __device__ TileScheduler() : next_(blockIdx.x) {}

  __device__ int next() const { return next_; }

  // Late in a tile, so that the longest that is left goes to the block that is free first; but the
  // answer takes a while.
  __device__ void ask(TileCounter* counter) {
    next_ = counter != nullptr ? gridDim.x + atomicAdd(&counter->taken, 1u) : next_ + gridDim.x;
  }

  // When there are no more.
  __device__ static void finish(TileCounter* counter) {
    if (counter == nullptr) return;
    __threadfence();
    if (atomicAdd(&counter->blocks_done, 1u) == gridDim.x - 1) *counter = {0, 0};
  }

 private:
  int next_;
};

inline constexpr std::size_t kCounters = 1 << 16;
static __device__ TileCounter counters[kCounters];

// The counter of dynamic scheduling. Without one, when graphs hold as many launches as there are
// counters, scheduling is static: slower for causal masks, else the same.
inline cudaError_t find_counter(const LaunchContext& context, TileCounter*& counter) {
  static LaunchCounters owners(kCounters);
  int index = -1;
  void* first = nullptr;
  cudaError_t status = owners.index_for(static_cast<cudaStream_t>(context.stream), index);
  if (status == cudaSuccess) {
    const RelaxedCapture relaxed;  // the address may have to be loaded first
    status = cudaGetSymbolAddress(&first, counters);
  }
  counter = index < 0 ? nullptr : static_cast<TileCounter*>(first) + index;
  return status;
}

}  // namespace kernelmint::attention::sm90a
