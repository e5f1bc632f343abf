// The map of shared memory, and which part of each product a warp makes.
#pragma once

#include <cstdint>

#include "attention/sm80_tiles.cuh"
#include "ptx/mbarrier.cuh"

namespace kernelmint::attention_backward::sm80 {

using namespace attention::sm80;

// Warps of a block lie in a grid: `key_sharers` of them share some of its keys. Each makes S and dP
// of these keys and of its part of a step's queries, and dK and dV of these keys and of its part of
// the columns. Of dQ each makes a tile of a grid that has `dq_rows` of them one below the other.
template <class Config>
struct Shape {
  static constexpr int kSharers = Config::key_sharers;
  static constexpr int kKeys = Config::B_c * kSharers / Config::n_warps;
  static constexpr int kQueries = Config::B_r / kSharers;
  static constexpr int kColumns = Config::d_head / kSharers;
  static constexpr int kDqQueries = Config::B_r / Config::dq_rows;
  static constexpr int kDqColumns = Config::d_head * Config::dq_rows / Config::n_warps;
};

// The map of shared memory, which a tile of so many bytes ends. K, V, Q and dO lie in rows of
// d_head columns, and dS in rows of queries, one a key, all swizzled. P, for warps that share keys,
// lies as left operands of dV: 16 keys by 16 queries at a time, 16 bytes of each lane.
template <class Config, int kTileBytes>
class SharedMemory {
 public:
  using Layout = SharedLayout<Config::d_head, true>;
  using ScoresLayout = SharedLayout<Config::B_r, true>;
  static constexpr int kKeysBytes = Config::B_c * Layout::kRowBytes;
  static constexpr int kQueriesBytes = Config::B_r * Layout::kRowBytes;
  static constexpr int kScoresBytes = Config::B_c * ScoresLayout::kRowBytes;
  static constexpr int kRowsBytes = Config::B_r * 4;

  static constexpr int kKeys = 0;
  static constexpr int kValues = kKeys + kKeysBytes;
  static constexpr int kQueries = kValues + kKeysBytes;
  static constexpr int kGradients = kQueries + Config::q_stages * kQueriesBytes;
  static constexpr int kScores = kGradients + Config::do_stages * kQueriesBytes;
  static constexpr int kProbabilities = kScores + kScoresBytes;
  static constexpr int kLogSums = kProbabilities + (Config::key_sharers > 1 ? kScoresBytes : 0);
  static constexpr int kDeltas = kLogSums + Config::q_stages * kRowsBytes;
  static constexpr int kBarriers = kDeltas + Config::do_stages * kRowsBytes;

  // A block of queries with its rows' values: Q and the log-sum-exps, or dO and D. Its barriers:
  // all threads' copies have come; all warps are done with it.
  template <int kFirst, int kFirstRows, int kFirstBarrier, int kStages>
  struct Ring {
    static constexpr int kBuffers = kStages, kEnd = kFirstBarrier + 16 * kStages;

    __device__ static std::uint32_t data(int stage) { return kFirst + stage * kQueriesBytes; }
    __device__ static std::uint32_t rows(int stage) { return kFirstRows + stage * kRowsBytes; }
    __device__ static std::uint32_t full(int stage) { return kFirstBarrier + 16 * stage; }
    __device__ static std::uint32_t empty(int stage) { return kFirstBarrier + 16 * stage + 8; }
  };
  using Queries = Ring<kQueries, kLogSums, kBarriers, Config::q_stages>;
  using Gradients = Ring<kGradients, kDeltas, Queries::kEnd, Config::do_stages>;
  // All warps have written dS, and P; all have read them.
  static constexpr int kScoresMade = Gradients::kEnd;
  static constexpr int kScoresRead = kScoresMade + 8;
  // In turn: a step may add to dQ; and of this step and the one before, the index of the block of
  // dQ, and how many blocks of keys add before this one.
  static constexpr int kTurn = kScoresRead + 8;
  static constexpr int kTurns = kTurn + 16;
  static constexpr int kTile = kTurn + (Config::deterministic ? 32 : 0);
  __device__ static std::uint32_t turn(int i) { return kTurns + 8 * (i & 1); }
  static_assert(kTile % 16 == 0 && kTile + kTileBytes == Config::smem_bytes);

  // By one thread, before all others go on.
  __device__ static void initialise_barriers(std::uint32_t shared) {
    initialise<Queries>(shared);
    initialise<Gradients>(shared);
    ptx::mbarrier_init(shared + kScoresMade, Config::n_warps);
    ptx::mbarrier_init(shared + kScoresRead, Config::n_warps);
    if constexpr (Config::deterministic) ptx::mbarrier_init(shared + kTurn, 1);
  }

 private:
  template <class Ring>
  __device__ static void initialise(std::uint32_t shared) {
    for (int i = 0; i < Ring::kBuffers; ++i) {
      ptx::mbarrier_init(shared + Ring::full(i), Config::threads);
      ptx::mbarrier_init(shared + Ring::empty(i), Config::n_warps);
    }
  }
};

}  // namespace kernelmint::attention_backward::sm80
