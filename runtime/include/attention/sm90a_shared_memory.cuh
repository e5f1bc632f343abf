// The layout of shared memory, and its way from warp to warp.
#pragma once

#include <cstdint>

#include "integers.h"
#include "ptx/mbarrier.cuh"
#include "ptx/shared_memory.cuh"

namespace kernelmint::attention::sm90a {

inline constexpr int kSlabRows = 64;        // rows of a warpgroup
inline constexpr int kPanelRowBytes = 128;  // 64 columns

// The map of shared memory. Tiles lie in panels of 64 columns, all rows of one after the other, so
// that a row of a panel is the 128 bytes that TMA and wgmma swizzle. What the last panel has past
// the head dimension is loaded as zeros, multiplied by nothing and not stored. Q comes, and O
// leaves, in slabs of 64 rows, one for each warpgroup.
//
// Each ring of buffers has barriers that say that a buffer is full and that it is empty again. What
// the producer announces of its tiles, `kTileBytes` each, has a ring of `kTileSlots`. O may leave
// through `kOutputSlabs`.
template <class Config, int kOutputSlabs, int kTileBytes, int kTileSlots>
class SharedMemory {
 public:
  static constexpr int kPanels = ceil_div(Config::d_head, 64);
  static constexpr int kRowBytes = kPanels * kPanelRowBytes;
  static constexpr int kSlabBytes = kSlabRows * kRowBytes;
  static constexpr int kBlockBytes = Config::B_c * kRowBytes;  // a block of keys or of values

 private:
  static constexpr int kSlabs = Config::q_buffers * Config::n_warpgroups;

  static constexpr int kQueries = 0;
  static constexpr int kOutputs = kQueries + kSlabs * kSlabBytes;
  static constexpr int kKeys = kOutputs + kOutputSlabs * kSlabBytes;
  static constexpr int kValues = kKeys + Config::stages * kBlockBytes;
  static constexpr int kTiles = kValues + Config::stages * kBlockBytes;
  static constexpr int kBarriers = kTiles + kTileSlots * kTileBytes;
  static constexpr int kQueriesFull = kBarriers;
  static constexpr int kQueriesEmpty = kQueriesFull + 8 * kSlabs;
  static constexpr int kKeysFull = kQueriesEmpty + 8 * kSlabs;
  static constexpr int kKeysEmpty = kKeysFull + 8 * Config::stages;
  static constexpr int kValuesFull = kKeysEmpty + 8 * Config::stages;
  static constexpr int kValuesEmpty = kValuesFull + 8 * Config::stages;
  static_assert(kValuesEmpty + 8 * Config::stages <= Config::smem_bytes);

 public:
  struct Keys {
    static constexpr int kBuffers = Config::stages, kStride = 8;
    static constexpr int kFull = kKeysFull, kEmpty = kKeysEmpty;
  };
  struct Values {
    static constexpr int kBuffers = Config::stages, kStride = 8;
    static constexpr int kFull = kValuesFull, kEmpty = kValuesEmpty;
  };
  struct Queries {
    static constexpr int kBuffers = Config::q_buffers, kStride = 8 * Config::n_warpgroups;
    static constexpr int kFull = kQueriesFull, kEmpty = kQueriesEmpty;
  };
  struct Tiles {
    static constexpr int kBuffers = kTileSlots;
  };

  __device__ explicit SharedMemory(std::uint32_t base) : base_(base) {}

  __device__ __forceinline__ std::uint32_t queries(int buffer, int warpgroup) const {
    return base_ + kQueries + (buffer * Config::n_warpgroups + warpgroup) * kSlabBytes;
  }
  __device__ __forceinline__ std::uint32_t outputs(int warpgroup) const {
    return base_ + kOutputs + warpgroup * kSlabBytes;
  }
  __device__ __forceinline__ std::uint32_t keys(int stage) const {
    return base_ + kKeys + stage * kBlockBytes;
  }
  __device__ __forceinline__ std::uint32_t values(int stage) const {
    return base_ + kValues + stage * kBlockBytes;
  }
  // The barrier of a buffer of `Ring` that says that it is full, or empty; of queries, one
  // warpgroup's.
  template <class Ring>
  __device__ __forceinline__ std::uint32_t full(int buffer, int warpgroup = 0) const {
    return base_ + Ring::kFull + buffer * Ring::kStride + warpgroup * 8;
  }
  template <class Ring>
  __device__ __forceinline__ std::uint32_t empty(int buffer, int warpgroup = 0) const {
    return base_ + Ring::kEmpty + buffer * Ring::kStride + warpgroup * 8;
  }

  // The announcement of a tile.
  __device__ __forceinline__ std::uint32_t tile(int slot) const {
    return base_ + kTiles + slot * kTileBytes;
  }

  // One thread calls this, before all others go on. Readers arrive once a warp: the work that a
  // warp waited for, such as wgmma's products, is ordered only for that warp.
  __device__ void initialise_barriers() const {
    constexpr int kWarps = 4;  // a warpgroup's
    for (int i = 0; i < kSlabs; ++i) {
      ptx::mbarrier_init(base_ + kQueriesFull + 8 * i, 1);
      ptx::mbarrier_init(base_ + kQueriesEmpty + 8 * i, kWarps);
    }
    for (int i = 0; i < Config::stages; ++i) {
      ptx::mbarrier_init(base_ + kKeysFull + 8 * i, 1);
      ptx::mbarrier_init(base_ + kKeysEmpty + 8 * i, kWarps * Config::n_warpgroups);
      ptx::mbarrier_init(base_ + kValuesFull + 8 * i, 1);
      ptx::mbarrier_init(base_ + kValuesEmpty + 8 * i, kWarps * Config::n_warpgroups);
    }
    ptx::fence_mbarrier_init();
  }

 private:
  std::uint32_t base_;
};

// A place in a ring of buffers, and the parity of the phase that its barriers are in.
template <class Ring>
class RingPosition {
 public:
  __device__ __forceinline__ int buffer() const { return buffer_; }

  __device__ __forceinline__ void advance() {
    if (++buffer_ == Ring::kBuffers) {
      buffer_ = 0;
      parity_ ^= 1;
    }
  }

  template <class Shared>
  __device__ __forceinline__ void wait_full(const Shared& shared, int warpgroup = 0) const {
    ptx::mbarrier_wait(shared.template full<Ring>(buffer_, warpgroup), parity_);
  }
  template <class Shared>
  __device__ __forceinline__ void wait_empty(const Shared& shared, int warpgroup = 0) const {
    ptx::mbarrier_wait(shared.template empty<Ring>(buffer_, warpgroup), parity_ ^ 1);
  }

  // A reading warp is done with the buffer.
  template <class Shared>
  __device__ __forceinline__ void release(const Shared& shared, int warpgroup = 0) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0)
      ptx::mbarrier_arrive(shared.template empty<Ring>(buffer_, warpgroup));
  }

 private:
  int buffer_ = 0;
  std::uint32_t parity_ = 0;
};

}  // namespace kernelmint::attention::sm90a
