// Scores in the registers of the warpgroups that compute: where they lie, which become zero, and
// rows of their operands that do.
#pragma once

#include <cstdint>

#include "attention/sm90a_backward_shared_memory.cuh"
#include "ptx/math.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/special_registers.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "register_tile.cuh"

namespace kernelmint::attention_backward::sm90a {

// Where a lane's scores lie. It holds two keys (lane / 4 of the warp's 16, and 8 more) by pairs of
// queries, 8 queries apart; of a wide head, whose scores are not transposed, two queries by pairs
// of keys. Keys are counted from the warpgroup's first one, of a wide head from the block's.
template <class Config>
class ScoresOfLane {
 public:
  __device__ __forceinline__ static int first_key() {
    return kIsWide<Config> ? (thread() / 128 - 1) * kKeysOfWarpgroup<Config> + pair() : row();
  }
  __device__ __forceinline__ static int first_query() { return kIsWide<Config> ? row() : pair(); }
  // How far the e-th register's key and query are after the first ones.
  __device__ __forceinline__ static constexpr int key(int e) {
    return kIsWide<Config> ? column(e) : e / 2 % 2 * 8;
  }
  __device__ __forceinline__ static constexpr int query(int e) {
    return kIsWide<Config> ? e / 2 % 2 * 8 : column(e);
  }

 private:
  __device__ __forceinline__ static int thread() {
    return static_cast<int>(ptx::reread_thread_index());
  }
  __device__ __forceinline__ static int row() {
    return thread() % 128 / 32 * 16 + thread() % 32 / 4;
  }
  __device__ __forceinline__ static int pair() { return thread() % 4 * 2; }
  __device__ __forceinline__ static constexpr int column(int e) { return e / 4 * 8 + e % 2; }
};

// P, from a score as an exponent of two and its row's log-sum-exp. That of a row beside a sequence,
// which a step that cleans may have, is -inf: its P is 0 even if 0 times K is NaN.
template <bool kCleans>
__device__ __forceinline__ float probability(float score, float log_sum) {
  if (kCleans && log_sum == -INFINITY) return 0;
  return ptx::exp2(score - log_sum);
}

// In the place of a hidden score's tanh.
inline constexpr float kNoTanh = 2;

// Scores, or what was made of them, become `value` where a query does not see a key.
template <class Config, class Problem, class Keys, int kCount>
__device__ __forceinline__ void hide(const Problem& problem, const Keys& keys, int block,
                                     float (&scores)[kCount], float value) {
  using Lane = ScoresOfLane<Config>;
  const auto hidden = keys.hidden(problem, block, Lane::first_key(), Lane::first_query());
  unroll<kCount>([&](int e) {
    if (hidden(Lane::key(e), Lane::query(e))) scores[e] = value;
  });
}

// Rows of blocks of K, V, Q or dO become zero, but for those from `begin` to before `end`: rows
// beside a sequence are multiplied by zeros, and may not be finite. A row of a panel has
// `kRowChunks` of 16 bytes.
template <class Config, int kRows, int kRowChunks = 8, class... Blocks>
__device__ __forceinline__ void clean(int begin, int end, Blocks... blocks) {
  constexpr int kThreads = 128 * Config::n_warpgroups;
  if (begin <= 0 && end >= kRows) return;
#pragma unroll 1
  for (int i = static_cast<int>(ptx::reread_thread_index()) - 128;
       i < kRows * (Config::padded_head / 64) * 8; i += kThreads) {
    if (const int row = i / kRowChunks % kRows; row >= begin && row < end) continue;
    (ptx::store_shared(blocks + i * 16, uint4{0, 0, 0, 0}), ...);
  }
  ptx::fence_async_shared();
  ptx::named_barrier_sync(kCleaned, kThreads);
}

}  // namespace kernelmint::attention_backward::sm90a
