// The map of shared memory for wide heads.
#pragma once

#include <cstdint>

#include "attention/sm90a_backward_shared_memory.cuh"

namespace kernelmint::attention_backward::sm90a {

// K, V, Q and dO as in SharedMemory; by keys K lies in panels of 32 columns. P and dS lie
// transposed, keys by queries: a row is a key's 64 queries. P has two buffers: a warpgroup makes P
// while another one may still multiply the last; by keys one, since no other reads it, and a place
// for dQ, in the order of the registers. A tile's description may have `kTileBytes` at the end.
template <class Config, int kTileBytes = 0>
class WideSharedMemory : public Rings {
  static constexpr int kPanels = Config::d_head / 64;

 public:
  static constexpr int kKeyPanelBytes = Config::B_c * kPanelRowBytes;
  static constexpr int kQueryPanelBytes = Config::B_r * kPanelRowBytes;
  static constexpr int kKeysBytes = kPanels * kKeyPanelBytes;
  static constexpr int kQueriesBytes = kPanels * kQueryPanelBytes;
  static constexpr int kScoresBytes = Config::B_c * kPanelRowBytes;
  static constexpr int kRowsBytes = Config::B_r * 4;
  static constexpr int kPartBytes = Config::B_r * Config::d_head * 4 / Config::n_warpgroups;
  static constexpr int kLastPartBytes = kPartBytes;
  static_assert(Config::B_r == 64);

  template <int kFirst, int kFirstRows, int kFirstBarrier, int kStages>
  struct Ring {
    static constexpr int kDataStep = kQueriesBytes, kRowsStep = kRowsBytes;
    static constexpr int kBuffers = kStages, kData = kFirst, kRows = kFirstRows,
                         kFull = kFirstBarrier, kEmpty = kFirstBarrier + 8 * kStages;
  };

 private:
  static constexpr int kKeys = 0;
  static constexpr int kValues = kKeys + kKeysBytes;
  static constexpr int kQueries = kValues + kKeysBytes;
  static constexpr int kGradients = kQueries + Config::q_stages * kQueriesBytes;
  static constexpr int kProbabilities = kGradients + Config::do_stages * kQueriesBytes;
  static constexpr int kScoreGradients = kProbabilities + (Config::by_keys ? 1 : 2) * kScoresBytes;
  static constexpr int kUnused = kScoreGradients + kScoresBytes, kSums = kUnused;
  static constexpr int kTurn = kUnused + 8 * kPanelRowBytes;
  static constexpr int kLogSums =
      Config::by_keys ? kSums + Config::n_warpgroups * kPartBytes : kTurn + 16;
  static constexpr int kDeltas = kLogSums + Config::q_stages * kRowsBytes;
  static constexpr int kBarriers = kDeltas + Config::do_stages * kRowsBytes;
  static constexpr int kEnd = kBarriers + 16 * (Config::q_stages + Config::do_stages + 1);
  static_assert(kEnd + kTileBytes == Config::smem_bytes);
  static_assert(kBarriers % 8 == 0 && (kTileBytes == 0 || kEnd % 16 == 0));

 public:
  using Queries = Ring<kQueries, kLogSums, kBarriers + 16, Config::q_stages>;
  using Gradients =
      Ring<kGradients, kDeltas, kBarriers + 16 + 16 * Config::q_stages, Config::do_stages>;

  using Rings::Rings;

  __device__ __forceinline__ std::uint32_t keys() const { return base_ + kKeys; }
  __device__ __forceinline__ std::uint32_t values() const { return base_ + kValues; }
  __device__ __forceinline__ std::uint32_t probabilities(int buffer) const {
    return base_ + kProbabilities + buffer * kScoresBytes;
  }
  __device__ __forceinline__ std::uint32_t score_gradients() const {
    return base_ + kScoreGradients;
  }
  // Where a warpgroup leaves its part of dQ, by keys.
  __device__ __forceinline__ std::uint32_t query_gradients(int warpgroup) const {
    return base_ + kSums + warpgroup * kPartBytes;
  }
  // Eight rows that are written and never read.
  __device__ __forceinline__ std::uint32_t unused() const { return base_ + kUnused; }
  // The index of the block of queries that the warpgroups add dQ of; its complement if they store.
  __device__ __forceinline__ std::uint32_t turn() const { return base_ + kTurn; }
  __device__ __forceinline__ std::uint32_t tile() const { return base_ + kEnd; }
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

}  // namespace kernelmint::attention_backward::sm90a
