// The map of shared memory, and how warps hand its buffers to each other.
#pragma once

#include <cstdint>

#include "ptx/mbarrier.cuh"
#include "ptx/shared_memory.cuh"

namespace kernelmint::attention_backward::sm90a {

inline constexpr int kPanelRowBytes = 128;  // 64 columns

// True if the warpgroups share a block of keys, each with a part of the columns of dK and dV: for
// heads that are too wide for a warpgroup to hold dK and dV of 64 keys.
template <class Config>
inline constexpr bool kIsWide = Config::d_head > 128;

// True if the warpgroups add dQ to memory themselves. Otherwise a warp of its own does.
template <class Config>
inline constexpr bool kConsumersAdd = kIsWide<Config> && !Config::by_keys;

// The warps that add dQ. A step that stores, or if dQ has to be the same each time, waits until it
// is in memory: if there are two warps, which take turns, the next step does not wait for it.
template <class Config>
inline constexpr int kWriters = kConsumersAdd<Config> || Config::d_head <= 64 ? 1 : 2;

// The keys that a warpgroup makes scores of, and the panels of dK, dV and dQ that it has of a wide
// head.
template <class Config>
inline constexpr int kKeysOfWarpgroup = Config::B_c / Config::n_warpgroups;
template <class Config>
inline constexpr int kPanelsOfWarpgroup = Config::d_head / 64 / Config::n_warpgroups;

// The columns of a panel of K, whose rows have twice as many bytes. By keys, a warpgroup makes 96
// columns of dQ, which are whole panels of 32.
template <class Config>
inline constexpr int kColumnsOfKeyPanel = Config::by_keys ? 32 : 64;

// The queries of a warpgroup's part of dQ: 64 columns, which are half of them, or all, but of half
// the queries.
template <class Config>
inline constexpr int kPartQueries = Config::B_r * Config::padded_head / 128;

// The threads of the second warpgroup whose rows of its part of dQ are columns that leave.
template <class Config>
inline constexpr int kLastPartThreads = Config::d_head == 96 ? 64 : 128;

// The rings of blocks of queries in shared memory, and their barriers.
class Rings {
 public:
  __device__ explicit Rings(std::uint32_t base) : base_(base) {}

  template <class Ring>
  __device__ __forceinline__ std::uint32_t data(int stage) const {
    return base_ + Ring::kData + stage * Ring::kDataStep;
  }
  template <class Ring>
  __device__ __forceinline__ std::uint32_t rows(int stage) const {
    return base_ + Ring::kRows + stage * Ring::kRowsStep;
  }
  template <class Ring>
  __device__ __forceinline__ std::uint32_t full(int stage) const {
    return base_ + Ring::kFull + stage * 8;
  }
  template <class Ring>
  __device__ __forceinline__ std::uint32_t empty(int stage) const {
    return base_ + Ring::kEmpty + stage * 8;
  }

 protected:
  template <class Ring>
  __device__ void initialise(int readers) const {
    for (int i = 0; i < Ring::kBuffers; ++i) {
      ptx::mbarrier_init(full<Ring>(i), 1);
      ptx::mbarrier_init(empty<Ring>(i), readers);
    }
  }

  std::uint32_t base_;
};

// The tiles of a thread block that has many: their indices, each of which stays until the next
// tile's K and V are read no more, or descriptions of so many bytes, which stay until the one after
// it is done; and whether K and V may be written again.
class ManyTiles {
 public:
  static constexpr int kBytes = 32, kDescriptions = 4;

  __device__ explicit ManyTiles(std::uint32_t base) : base_(base) {}

  __device__ __forceinline__ std::uint32_t keys_empty() const { return base_; }
  // The next tile's index is there; the loads of its Q and dO are requested.
  __device__ __forceinline__ std::uint32_t taken() const { return base_ + 8; }
  __device__ __forceinline__ std::uint32_t loaded() const { return base_ + 16; }
  __device__ __forceinline__ std::uint32_t index(int n) const { return base_ + 24 + n % 2 * 4; }
  // For a whole warp, which then knows that its lanes have the same.
  __device__ __forceinline__ int index_of_warp(int n) const {
    return __shfl_sync(~0u, static_cast<int>(ptx::load_shared_4(index(n))), 0);
  }

  template <int kDescriptionBytes>
  __device__ __forceinline__ std::uint32_t description(int n) const {
    return base_ + kBytes + n % kDescriptions * kDescriptionBytes;
  }

  __device__ void initialise(int readers) const {
    ptx::mbarrier_init(keys_empty(), readers);
    ptx::mbarrier_init(taken(), 1);
    ptx::mbarrier_init(loaded(), 1);
  }

 private:
  std::uint32_t base_;
};

// The map of shared memory. K, V, Q, dO and dS lie in panels of 64 columns, all rows of one after
// the other, whose rows of 128 bytes are swizzled as TMA and wgmma do it; columns that the head
// lacks are zero. Each warpgroup has a panel of dS, queries by keys. dQ lies in the order of the
// registers. A tile's description may have `kTileBytes` at the end.
template <class Config, int kTileBytes = 0>
class SharedMemory : public Rings {
  static constexpr int kPanels = Config::padded_head / 64;

 public:
  static constexpr int kKeyPanelBytes = Config::B_c * kPanelRowBytes;    // a panel of K or V
  static constexpr int kQueryPanelBytes = Config::B_r * kPanelRowBytes;  // a panel of Q, dO or dS
  static constexpr int kKeysBytes = kPanels * kKeyPanelBytes;
  static constexpr int kQueriesBytes = kPanels * kQueryPanelBytes;
  static constexpr int kSumsBytes = 2 * kQueryPanelBytes;
  static constexpr int kRowsBytes = Config::B_r * 4;
  static constexpr int kPartQueries = sm90a::kPartQueries<Config>;
  static constexpr int kPartBytes = 64 * kPartQueries * 4;
  static constexpr int kLastPartBytes = kPartBytes * kLastPartThreads<Config> / 128;

  // A block of queries with its rows' values: Q and the log-sum-exps, or dO and D.
  template <int kFirst, int kFirstRows, int kFirstBarrier, int kStages>
  struct Ring {
    static constexpr int kDataStep = kQueriesBytes, kRowsStep = kRowsBytes;
    static constexpr int kBuffers = kStages, kEnd = kFirst + kStages * kQueriesBytes,
                         kRowsEnd = kFirstRows + kStages * kRowsBytes,
                         kBarriersEnd = kFirstBarrier + 16 * kStages;
    static constexpr int kData = kFirst, kRows = kFirstRows, kFull = kFirstBarrier,
                         kEmpty = kFirstBarrier + 8 * kStages;
  };

 private:
  static constexpr int kKeys = 0;
  static constexpr int kValues = kKeys + kKeysBytes;
  static constexpr int kQueries = kValues + kKeysBytes;
  static constexpr int kGradients = kQueries + Config::q_stages * kQueriesBytes;
  static constexpr int kScores = kGradients + Config::do_stages * kQueriesBytes;
  static constexpr int kSums = kScores + 2 * kSumsBytes;
  static constexpr int kLogSums = kSums + 2 * kPartBytes;
  static constexpr int kDeltas = kLogSums + Config::q_stages * kRowsBytes;
  static constexpr int kBarriers = kDeltas + Config::do_stages * kRowsBytes;

 public:
  using Queries = Ring<kQueries, kLogSums, kBarriers + 16, Config::q_stages>;
  using Gradients = Ring<kGradients, kDeltas, Queries::kBarriersEnd, Config::do_stages>;
  static_assert(Gradients::kBarriersEnd + kTileBytes == Config::smem_bytes);
  static_assert(kBarriers % 8 == 0 && (kTileBytes == 0 || Gradients::kBarriersEnd % 16 == 0));

  using Rings::Rings;

  __device__ __forceinline__ std::uint32_t keys() const { return base_ + kKeys; }
  __device__ __forceinline__ std::uint32_t values() const { return base_ + kValues; }
  __device__ __forceinline__ std::uint32_t score_gradients(int buffer) const {
    return base_ + kScores + buffer * kSumsBytes;
  }
  // Where a warpgroup leaves its part of dQ.
  __device__ __forceinline__ std::uint32_t query_gradients(int warpgroup) const {
    return base_ + kSums + warpgroup * kPartBytes;
  }
  __device__ __forceinline__ std::uint32_t tile() const { return base_ + Gradients::kBarriersEnd; }
  __device__ __forceinline__ std::uint32_t keys_full() const { return base_ + kBarriers; }
  __device__ __forceinline__ std::uint32_t values_full() const { return base_ + kBarriers + 8; }

  // By one thread, before all others go on.
  __device__ void initialise_barriers() const {
    ptx::mbarrier_init(keys_full(), 1);
    ptx::mbarrier_init(values_full(), 1);
    this->template initialise<Queries>(4 * Config::n_warpgroups);
    this->template initialise<Gradients>(4 * Config::n_warpgroups);
    ptx::fence_mbarrier_init();
  }
};

// Named barriers. dS of all warpgroups is there; a warpgroup's part of dQ may be written, or has
// been, which it and the warp that adds dQ share, of a pair of warps each with its own barrier;
// rows beside a sequence are zero; for wide heads, P of all warpgroups is there, or a warpgroup's
// own, and the other one has read its dS; it is the turn of a warpgroup that adds its part of dQ.
enum NamedBarrier {
  kScoresMade = 1,
  kPartEmpty = 2,
  kPartFull = 4,
  kCleaned = 8,
  kProbabilitiesMade = 9,
  kScoresRead = 11,
  kTurnCome = 13
};

}  // namespace kernelmint::attention_backward::sm90a
