// The warpgroups that compute, for wide heads: FlashAttention-3's tile (Shah et al., 2024).
#pragma once

#include <cstdint>

#include "attention/sm90a_backward_scores.cuh"
#include "attention/sm90a_backward_wide_shared_memory.cuh"
#include "ptx/atomic.cuh"
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

// A warpgroup with its part of the columns of dK and dV, transposed, of all keys of the block, and
// of dQ. It makes S and dP of 64 queries by its part of the keys: P and dS go through shared
// memory, transposed, so that all five products but S and dP take columns that lie side by side.
template <class Config, class Sequences>
class WideConsumer {
  using Element = typename Config::dtype;
  using Shared = typename Sequences::Shared;
  using Queries = typename Shared::Queries;
  using Gradients = typename Shared::Gradients;
  using Problem = typename Sequences::Problem;
  using Tile = typename Sequences::Tile;
  static constexpr int kThreads = 128 * Config::n_warpgroups;
  static constexpr int kKeys = kKeysOfWarpgroup<Config>;      // keys of S and dP
  static constexpr int kScores = kKeys / 2;                   // registers of S, or of dP
  static constexpr int kPanels = kPanelsOfWarpgroup<Config>;  // panels of dK, dV and dQ
  static constexpr int kColumns = Config::B_c / 2;            // registers of 64 columns of dK or dV
  using ScoreProduct = ptx::Wgmma<Element, kKeys>;
  using KeyProduct = ptx::Wgmma<Element, Config::B_c>;
  using QueryProduct = ptx::Wgmma<Element, 64>;

 public:
  __device__ WideConsumer(const Problem& problem, const Shared& shared, int warpgroup)
      : problem_(problem), shared_(shared), warpgroup_(warpgroup) {}

  __device__ __forceinline__ void run() {
    const Tile tile = Sequences::tile(problem_, shared_);
    keys_.find(problem_, tile, shared_.tile(), 0);
    unroll<kPanels>(
        [&](int panel) { unroll<kColumns>([&](int i) { dk_[panel][i] = 0, dv_[panel][i] = 0; }); });
    const int steps = problem_.group * tile.blocks;
    if (steps > 0) {
      ptx::mbarrier_wait(shared_.keys_full(), 0);
      ptx::mbarrier_wait(shared_.values_full(), 0);
      if constexpr (Sequences::kCleans)
        clean<Config, Config::B_c>(keys_.begin_of_block(), keys_.end_of_block(), shared_.keys(),
                                   shared_.values());
    }
    keys_.for_each_step(problem_, tile, steps,
                        [&](auto masked, int i, int block) { step<masked()>(i, block); });
    // K and V are read no more: dK and dV leave through them.
    ptx::named_barrier_sync(kScoresMade, kThreads);
    unroll<kPanels>([&](int panel) {
      leave(shared_.values(), dv_[panel], panel, 1);
      leave(shared_.keys(), dk_[panel], panel, Sequences::scale(problem_));
    });
    ptx::named_barrier_sync(kScoresMade, kThreads);
    store(problem_.args.dv, shared_.values(), Sequences::value_columns(problem_));
    store(problem_.args.dk, shared_.keys(), Sequences::columns(problem_));
    if constexpr (Sequences::kSaysWhenDone) {
      __threadfence();
      ptx::named_barrier_sync(kScoresMade, kThreads);
      if (threadIdx.x == 128)
        Sequences::say_done(problem_, Sequences::tile_again(problem_, shared_));
    }
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
    request_scores(scores, queries, shared_.keys());
    const std::uint32_t log_sums = shared_.template rows<Queries>(q_stage) + row;
    const float low_sum = load(log_sums), high_sum = load(log_sums + 32);
    ptx::mbarrier_wait(gradients_full, gradients_parity);
    request_scores(products, gradients, shared_.values());
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
    const std::uint32_t probabilities = shared_.probabilities(i % 2);
    store_transposed(probabilities, scores);
    ptx::fence_async_shared();
    ptx::named_barrier_sync(kProbabilitiesMade, kThreads);
    unroll<kPanels>(
        [&](int panel) { request_gradients(dv_[panel], gradients, probabilities, panel); });
    ptx::wgmma_wait_group<kPanels>();
    ptx::pin(products);
    trace.probabilities(scores, products);
    unroll<kScores>([&](int e) {
      products[e] = scores[e] * (products[e] - (e / 2 % 2 == 0 ? low_delta : high_delta));
    });
    if constexpr (Sequences::kChangesScores) {
      change.differentiate(scores, products,
                           [&](int e) { return e / 2 % 2 == 0 ? low_sum : high_sum; });
      change.add_taken();
    }
    trace.score_gradients(products);
    store_transposed(shared_.score_gradients(), products);
    ptx::fence_async_shared();
    ptx::named_barrier_sync(kScoresMade, kThreads);
    // A panel of dQ is added to memory beside the products of a panel of dK.
    unroll<kPanels>([&](int panel) {
      float part[32];
      request_query_gradients(part, panel);
      request_gradients(dk_[panel], queries, shared_.score_gradients(), panel);
      if (panel == 0) {
        ptx::wgmma_wait_group<2>();
        unroll<kPanels>([&](int other) { ptx::pin(dv_[other]); });
        trace.gradients(gradients, shared_.template rows<Gradients>(do_stage), shared_.values());
        release(shared_.template empty<Gradients>(do_stage));
      }
      ptx::wgmma_wait_group<1>();
      ptx::pin(part);
      trace.query_gradients(part, (warpgroup_ * kPanels + panel) * 64);
      add(part, panel);
    });
    ptx::named_barrier_arrive(kPartFull, kThreads + 32);
    ptx::wgmma_wait_group<0>();
    unroll<kPanels>([&](int panel) { ptx::pin(dk_[panel]); });
    trace.key_gradients(dk_, dv_);
    release(shared_.template empty<Queries>(q_stage));
  }

  // d = a b^T of 64 rows of `a`, Q or dO, and of the warpgroup's keys of `b`, K or V.
  __device__ __forceinline__ void request_scores(float (&d)[kScores], std::uint32_t a,
                                                 std::uint32_t b) const {
    const std::uint64_t left = ptx::swizzled_descriptor(a);
    const std::uint64_t right = ptx::swizzled_descriptor(b + warpgroup_ * kKeys * kPanelRowBytes);
    ptx::pin(d);
    ptx::wgmma_fence();
    unroll<Config::d_head / 16>([&](int k) {
      ScoreProduct::shared_shared(
          d, ptx::advance_wide(left, k / 4 * Shared::kQueryPanelBytes + k % 4 * 32),
          ptx::advance_wide(right, k / 4 * Shared::kKeyPanelBytes + k % 4 * 32), k != 0);
    });
    ptx::wgmma_commit_group();
    ptx::pin(d);
  }

  // d += a^T b of a panel of the columns of `a`, Q or dO, and of all keys of `b`, dS or P.
  __device__ __forceinline__ void request_gradients(float (&d)[kColumns], std::uint32_t a,
                                                    std::uint32_t b, int panel) const {
    const std::uint64_t left =
        ptx::swizzled_descriptor(a + (warpgroup_ * kPanels + panel) * Shared::kQueryPanelBytes);
    const std::uint64_t right = ptx::swizzled_descriptor(b);
    ptx::pin(d);
    ptx::wgmma_fence();
    unroll<Config::B_r / 16>([&](int k) {
      KeyProduct::transposed_shared(d, ptx::advance_wide(left, k * 16 * kPanelRowBytes),
                                    ptx::advance_wide(right, k * 32), 1);
    });
    ptx::wgmma_commit_group();
    ptx::pin(d);
  }

  // A panel of the columns of dQ: dS K.
  __device__ __forceinline__ void request_query_gradients(float (&d)[32], int panel) const {
    const std::uint64_t left = ptx::swizzled_descriptor(shared_.score_gradients());
    const std::uint64_t right = ptx::swizzled_descriptor(
        shared_.keys() + (warpgroup_ * kPanels + panel) * Shared::kKeyPanelBytes);
    ptx::pin(d);
    ptx::wgmma_fence();
    unroll<Config::B_c / 16>([&](int k) {
      QueryProduct::transposed_transposed(d, ptx::advance_wide(left, k * 16 * kPanelRowBytes),
                                          ptx::advance_wide(right, k * 16 * kPanelRowBytes),
                                          k != 0);
    });
    ptx::wgmma_commit_group();
    ptx::pin(d);
  }

  // Adds 16 queries by 64 columns of each warp to dQ, or stores them, when it is the step's turn.
  __device__ __forceinline__ void add(float (&part)[32], int panel) {
    if (panel == 0) ptx::named_barrier_sync(kTurnCome + warpgroup_, 160);
    const int turn = static_cast<int>(ptx::load_shared_4(shared_.turn()));
    const int thread = static_cast<int>(ptx::reread_thread_index()), lane = thread % 32;
    const int warp = warpgroup_ * 4 + thread % 128 / 32, index = turn < 0 ? ~turn : turn;
    float* const to = problem_.dq + std::int64_t{index} * (Config::B_r * Config::padded_head) +
                      (warp * kPanels + panel) * 1024 + lane * ptx::kQuadLaneStep;
    const auto each = [&](const auto& f) {
      unroll<8>([&](int quad) {
        float (&values)[4] = *reinterpret_cast<float (*)[4]>(&part[4 * quad]);
        f(to + quad * 128, values);
      });
    };
    if (turn < 0)
      each([](float* at, const float (&x)[4]) { ptx::store_quad(at, x); });
    else
      each([](float* at, const float (&x)[4]) { ptx::add_quad(at, x); });
  }

  // Stores 64 queries by the warpgroup's keys, rounded, as rows of keys.
  __device__ __forceinline__ void store_transposed(std::uint32_t to,
                                                   const float (&values)[kScores]) const {
    const unsigned thread = ptx::reread_thread_index(), lane = thread % 32;
    const unsigned chunk = thread % 128 / 32 * 2 + lane / 8 % 2, row = lane / 16 * 8 + lane % 8;
    const std::uint32_t in_row = (chunk ^ lane % 8) << 4;
    unroll<(kKeys + 15) / 16>([&](int pair) {
      std::uint32_t fragment[4];
      unroll<4>([&](int k) {
        const int e = pair * 8 + k * 2;
        fragment[k] = e < kScores ? ptx::pack<Element>(values[e], values[e + 1]) : 0;
      });
      std::uint32_t at = to + (warpgroup_ * kKeys + pair * 16 + row) * kPanelRowBytes;
      // Half of the last pair's keys may be another warpgroup's.
      if (pair * 16 + 16 > kKeys && lane / 16 == 1)
        at = shared_.unused() + lane % 8 * kPanelRowBytes;
      ptx::stmatrix_x4_transposed(at + in_row, fragment);
    });
  }

  // A panel of dK or dV, rounded, as rows of keys.
  __device__ __forceinline__ void leave(std::uint32_t to, const float (&d)[kColumns], int panel,
                                        float factor) const {
    const unsigned thread = ptx::reread_thread_index(), lane = thread % 32;
    const unsigned chunk = thread % 128 / 32 * 2 + lane / 8 % 2, row = lane / 16 * 8 + lane % 8;
    const std::uint32_t first = to + (warpgroup_ * kPanels + panel) * Shared::kKeyPanelBytes +
                                row * kPanelRowBytes + ((chunk ^ lane % 8) << 4);
    unroll<Config::B_c / 16>([&](int pair) {
      std::uint32_t fragment[4];
      unroll<4>([&](int k) {
        const int e = pair * 8 + k * 2;
        fragment[k] = ptx::pack<Element>(d[e] * factor, d[e + 1] * factor);
      });
      ptx::stmatrix_x4_transposed(first + pair * 16 * kPanelRowBytes, fragment);
    });
  }

  // The block's rows of dK or dV, 16 bytes a lane.
  __device__ __forceinline__ void store(const TensorView<4>& tensor, std::uint32_t from,
                                        int columns) const {
    const Tile tile = Sequences::tile_again(problem_, shared_);
    constexpr int kChunks = Config::d_head / 8;
    const int thread = static_cast<int>(ptx::reread_thread_index()) - 128;
    const int chunk = thread % kChunks, count = min(Config::B_c, keys_.count());
    if (Sequences::kCleans && chunk * 8 >= columns) return;
#pragma unroll 1
    for (int key = thread / kChunks; key < count; key += kThreads / kChunks)
      *reinterpret_cast<uint4*>(Sequences::template gradient_row<Element>(tensor, tile, 0, key) +
                                chunk * 8) =
          ptx::load_shared_16(from + chunk / 8 * Shared::kKeyPanelBytes + key * kPanelRowBytes +
                              ((chunk % 8 ^ key % 8) << 4));
  }

  __device__ __forceinline__ static float load(std::uint32_t address) {
    return __uint_as_float(ptx::load_shared_4(address));
  }
  __device__ __forceinline__ static void release(std::uint32_t empty) {
    __syncwarp();
    if (ptx::reread_thread_index() % 32 == 0) ptx::mbarrier_arrive(empty);
  }

  const Problem& problem_;
  const Shared shared_;
  const int warpgroup_;
  typename Sequences::Keys keys_;
  float dk_[kPanels][kColumns], dv_[kPanels][kColumns];
};

}  // namespace kernelmint::attention_backward::sm90a
