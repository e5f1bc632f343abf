// The warpgroups that compute, for wide heads, each with its keys: FlashAttention-4's split of the
// work (Dao-AILab/flash-attention, flash_attn/cute).
#pragma once

#include <cstdint>

#include "attention/sm90a_backward_scores.cuh"
#include "attention/sm90a_backward_wide_shared_memory.cuh"
#include "ptx/math.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/special_registers.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "ptx/wgmma.cuh"
#include "register_tile.cuh"
#include "tensor_view.h"

namespace kernelmint::attention_backward::sm90a {

// One of two warpgroups, with all columns of dK and dV, transposed, of half of the block's keys. It
// makes S and dP of 64 queries by these keys. P goes through shared memory within the warpgroup, dS
// for both: each makes half of the columns of dQ, over all keys.
template <class Config, class Sequences>
class ByKeysConsumer {
  using Element = typename Config::dtype;
  using Shared = typename Sequences::Shared;
  using Queries = typename Shared::Queries;
  using Gradients = typename Shared::Gradients;
  using Problem = typename Sequences::Problem;
  using Tile = typename Sequences::Tile;
  static_assert(Config::n_warpgroups == 2);
  static constexpr int kKeys = kKeysOfWarpgroup<Config>;
  static constexpr int kScores = kKeys / 2;            // registers of S, or dP; of a panel of dK
  static constexpr int kPanels = Config::d_head / 64;  // panels of dK, or dV
  static constexpr int kPartColumns = Config::d_head / 2;  // columns of dQ
  static constexpr int kPart = kPartColumns / 2;           // registers of dQ
  static constexpr int kKeyRowBytes = kColumnsOfKeyPanel<Config> * 2;
  using KeyProduct = ptx::Wgmma<Element, kKeys>;
  using QueryProduct = ptx::Wgmma<Element, kPartColumns>;

 public:
  __device__ ByKeysConsumer(const Problem& problem, const Shared& shared, int warpgroup)
      : problem_(problem), shared_(shared), warpgroup_(warpgroup) {}

  __device__ __forceinline__ void run() {
    const Tile tile = Sequences::tile(problem_, shared_);
    keys_.find(problem_, tile, shared_.tile(), 0);
    unroll<kPanels>(
        [&](int panel) { unroll<kScores>([&](int i) { dk_[panel][i] = 0, dv_[panel][i] = 0; }); });
    const int steps = problem_.group * tile.blocks;
    if (steps > 0) {
      ptx::mbarrier_wait(shared_.keys_full(), 0);
      ptx::mbarrier_wait(shared_.values_full(), 0);
      if constexpr (Sequences::kCleans) {
        const int begin = keys_.begin_of_block(), end = keys_.end_of_block();
        clean<Config, Config::B_c, kKeyRowBytes / 16>(begin, end, shared_.keys());
        clean<Config, Config::B_c>(begin, end, shared_.values());
      }
    }
    release_scores();
    keys_.for_each_step(problem_, tile, steps,
                        [&](auto masked, int i, int block) { step<masked()>(i, block); });
    wait_for_scores();
    // K and V are read no more: dK and dV leave through them, each warpgroup's through one half.
    const std::uint32_t half = warpgroup_ * (Shared::kKeysBytes / 2);
    unroll<kPanels>([&](int panel) {
      const std::uint32_t to = half + panel * kKeys * kPanelRowBytes;
      store_transposed(shared_.values() + to, dv_[panel], 1);
      store_transposed(shared_.keys() + to, dk_[panel], Sequences::scale(problem_));
    });
    ptx::named_barrier_sync(kProbabilitiesMade + warpgroup_, 128);
    store(problem_.args.dv, shared_.values() + half, Sequences::value_columns(problem_));
    store(problem_.args.dk, shared_.keys() + half, Sequences::columns(problem_));
  }

 private:
  template <bool kMasked>
  __device__ __forceinline__ void step(int i, int block) {
    constexpr bool kCleans = kMasked && Sequences::kCleans;
    const int q_stage = i % Config::q_stages, do_stage = i % Config::do_stages;
    const std::uint32_t queries = shared_.template data<Queries>(q_stage);
    const std::uint32_t gradients = shared_.template data<Gradients>(do_stage);
    const std::uint32_t gradients_full = shared_.template full<Gradients>(do_stage);
    const std::uint32_t gradients_parity = i / Config::do_stages & 1;
    const int lane = static_cast<int>(ptx::reread_thread_index() % 32);
    const std::uint32_t row = ptx::reread_thread_index() % 128 / 32 * 64 + lane / 4 * 4;
    float scores[kScores], products[kScores];
    ptx::mbarrier_wait(shared_.template full<Queries>(q_stage), i / Config::q_stages & 1);
    if constexpr (kCleans) {
      ptx::mbarrier_wait(gradients_full, gradients_parity);
      clean<Config, Config::B_r>(keys_.first_query(block), keys_.end_query(block), queries,
                                 gradients);
    }
    const auto trace = Sequences::trace(problem_, i, warpgroup_);
    trace.queries(queries, shared_.template rows<Queries>(q_stage), shared_.keys());
    request_scores<kKeyRowBytes>(scores, queries, shared_.keys());
    const std::uint32_t log_sums = shared_.template rows<Queries>(q_stage) + row;
    const float low_sum = load(log_sums), high_sum = load(log_sums + 32);
    ptx::mbarrier_wait(gradients_full, gradients_parity);
    request_scores<kPanelRowBytes>(products, gradients, shared_.values());
    const std::uint32_t deltas = shared_.template rows<Gradients>(do_stage) + row;
    const float low_delta = load(deltas), high_delta = load(deltas + 32);
    ptx::wgmma_wait_group<1>();
    ptx::pin(scores);
    trace.scores(scores);
    auto change = keys_.change_of_scores(problem_, i, block);
    if constexpr (Sequences::kChangesScores) change.apply(scores);
    unroll<kScores>([&](int e) {
      scores[e] =
          probability<kCleans>(scores[e] * change.factor(), e / 2 % 2 == 0 ? low_sum : high_sum);
    });
    if constexpr (kMasked) hide<Config>(problem_, keys_, block, scores, 0);
    const std::uint32_t own = warpgroup_ * kKeys * kPanelRowBytes;  // rows of P and dS
    const std::uint32_t probabilities = shared_.probabilities(0) + own;
    store_transposed(probabilities, scores, 1);
    ptx::fence_async_shared();
    ptx::named_barrier_sync(kProbabilitiesMade + warpgroup_, 128);
    request_gradients(dv_, gradients, probabilities);
    ptx::wgmma_wait_group<1>();
    ptx::pin(products);
    trace.probabilities(scores, products);
    unroll<kScores>([&](int e) {
      products[e] = scores[e] * (products[e] - (e / 2 % 2 == 0 ? low_delta : high_delta));
    });
    if constexpr (Sequences::kChangesScores)
      change.differentiate(scores, products,
                           [&](int e) { return e / 2 % 2 == 0 ? low_sum : high_sum; });
    trace.score_gradients(products);
    wait_for_scores();
    store_transposed(shared_.score_gradients() + own, products, 1);
    ptx::fence_async_shared();
    ptx::named_barrier_sync(kScoresMade, 256);
    float part[kPart];
    request_query_gradients(part);
    request_gradients(dk_, queries, shared_.score_gradients() + own);
    ptx::wgmma_wait_group<2>();  // dV
    pin(dv_);
    trace.gradients(gradients, shared_.template rows<Gradients>(do_stage), shared_.values());
    release(shared_.template empty<Gradients>(do_stage));
    ptx::wgmma_wait_group<1>();  // dQ
    ptx::pin(part);
    trace.query_gradients(part, warpgroup_ * kPartColumns);
    release_scores();
    give_query_gradients(part, i);
    ptx::wgmma_wait_group<0>();  // dK
    pin(dk_);
    trace.key_gradients(dk_, dv_);
    release(shared_.template empty<Queries>(q_stage));
  }

  // d = a b^T of 64 rows of `a`, Q or dO, and of the warpgroup's keys of `b`, K or V, whose rows
  // have `kRowBytes`.
  template <int kRowBytes>
  __device__ __forceinline__ void request_scores(float (&d)[kScores], std::uint32_t a,
                                                 std::uint32_t b) const {
    constexpr int kSlices = kRowBytes / 32;  // products of a panel of b
    const std::uint64_t left = ptx::swizzled_descriptor(a);
    const std::uint64_t right =
        ptx::swizzled_descriptor<kRowBytes>(b + warpgroup_ * kKeys * kRowBytes);
    ptx::pin(d);
    ptx::wgmma_fence();
    unroll<Config::d_head / 16>([&](int k) {
      KeyProduct::shared_shared(
          d, ptx::advance_wide(left, k / 4 * Shared::kQueryPanelBytes + k % 4 * 32),
          ptx::advance_wide(right, k / kSlices * Config::B_c * kRowBytes + k % kSlices * 32),
          k != 0);
    });
    ptx::wgmma_commit_group();
    ptx::pin(d);
  }

  // d += a^T b of the columns of `a`, Q or dO, and of the warpgroup's keys of `b`, dS or P.
  __device__ __forceinline__ void request_gradients(float (&d)[kPanels][kScores], std::uint32_t a,
                                                    std::uint32_t b) const {
    const std::uint64_t left = ptx::swizzled_descriptor(a), right = ptx::swizzled_descriptor(b);
    pin(d);
    ptx::wgmma_fence();
    unroll<kPanels>([&](int panel) {
      unroll<Config::B_r / 16>([&](int k) {
        KeyProduct::transposed_shared(
            d[panel],
            ptx::advance_wide(left, panel * Shared::kQueryPanelBytes + k * 16 * kPanelRowBytes),
            ptx::advance_wide(right, k * 32), 1);
      });
    });
    ptx::wgmma_commit_group();
    pin(d);
  }

  // The warpgroup's columns of dQ, over the keys of both: dS K.
  __device__ __forceinline__ void request_query_gradients(float (&d)[kPart]) const {
    const std::uint64_t left = ptx::swizzled_descriptor(shared_.score_gradients());
    const std::uint64_t right = ptx::swizzled_descriptor<kKeyRowBytes>(
        shared_.keys() + warpgroup_ * (Shared::kKeysBytes / 2), Config::B_c * kKeyRowBytes);
    ptx::pin(d);
    ptx::wgmma_fence();
    unroll<Config::B_c / 16>([&](int k) {
      QueryProduct::transposed_transposed(d, ptx::advance_wide(left, k * 16 * kPanelRowBytes),
                                          ptx::advance_wide(right, k * 16 * kKeyRowBytes), k != 0);
    });
    ptx::wgmma_commit_group();
    ptx::pin(d);
  }

  // The other warpgroup may write its dS; waits until this one may.
  __device__ __forceinline__ void release_scores() const {
    ptx::named_barrier_arrive(kScoresRead + 1 - warpgroup_, 256);
  }
  __device__ __forceinline__ void wait_for_scores() const {
    ptx::named_barrier_sync(kScoresRead + warpgroup_, 256);
  }

  // Hands the part of dQ of step i to the warp that adds it to memory.
  __device__ __forceinline__ void give_query_gradients(float (&d)[kPart], int i) const {
    ptx::named_barrier_sync(kPartEmpty + warpgroup_, 160);
    const std::uint32_t to =
        shared_.query_gradients(warpgroup_) + ptx::reread_thread_index() % 128 * 16;
    unroll<kPart / 4>([&](int c) {
      ptx::store_shared(to + c * 128 * 16,
                        uint4{__float_as_uint(d[4 * c]), __float_as_uint(d[4 * c + 1]),
                              __float_as_uint(d[4 * c + 2]), __float_as_uint(d[4 * c + 3])});
    });
    ptx::fence_async_shared();
    ptx::named_barrier_arrive(kPartFull + (i & (kWriters<Config> - 1)) * 2 + warpgroup_, 160);
  }

  // Stores 64 rows by the warpgroup's keys, times `factor` and rounded, as rows of keys.
  __device__ __forceinline__ static void store_transposed(std::uint32_t to,
                                                          const float (&values)[kScores],
                                                          float factor) {
    const unsigned thread = ptx::reread_thread_index(), lane = thread % 32;
    const unsigned chunk = thread % 128 / 32 * 2 + lane / 8 % 2, row = lane / 16 * 8 + lane % 8;
    const std::uint32_t first = to + row * kPanelRowBytes + ((chunk ^ lane % 8) << 4);
    unroll<kKeys / 16>([&](int pair) {
      std::uint32_t fragment[4];
      unroll<4>([&](int k) {
        const int e = pair * 8 + k * 2;
        fragment[k] = ptx::pack<Element>(values[e] * factor, values[e + 1] * factor);
      });
      ptx::stmatrix_x4_transposed(first + pair * 16 * kPanelRowBytes, fragment);
    });
  }

  // The warpgroup's rows of dK or dV, 16 bytes a lane.
  __device__ __forceinline__ void store(const TensorView<4>& tensor, std::uint32_t from,
                                        int columns) const {
    const Tile tile = Sequences::tile_again(problem_, shared_);
    constexpr int kChunks = Config::d_head / 8;
    const int thread = static_cast<int>(ptx::reread_thread_index()) % 128;
    const int count = min(kKeys, keys_.count() - warpgroup_ * kKeys);
#pragma unroll 1
    for (int i = thread; i < count * kChunks; i += 128) {
      const int key = i / kChunks, chunk = i % kChunks;
      if (Sequences::kCleans && chunk * 8 >= columns) continue;
      *reinterpret_cast<uint4*>(
          Sequences::template gradient_row<Element>(tensor, tile, 0, warpgroup_ * kKeys + key) +
          chunk * 8) = ptx::load_shared_16(from + (chunk / 8 * kKeys + key) * kPanelRowBytes +
                                           ((chunk % 8 ^ key % 8) << 4));
    }
  }

  __device__ __forceinline__ static float load(std::uint32_t address) {
    return __uint_as_float(ptx::load_shared_4(address));
  }
  __device__ __forceinline__ static void release(std::uint32_t empty) {
    __syncwarp();
    if (ptx::reread_thread_index() % 32 == 0) ptx::mbarrier_arrive(empty);
  }
  __device__ __forceinline__ static void pin(float (&d)[kPanels][kScores]) {
    unroll<kPanels>([&](int panel) { ptx::pin(d[panel]); });
  }

  const Problem& problem_;
  const Shared shared_;
  const int warpgroup_;
  typename Sequences::Keys keys_;
  float dk_[kPanels][kScores], dv_[kPanels][kScores];
};

}  // namespace kernelmint::attention_backward::sm90a
