// The warpgroups that compute: one step's products, and the work on them in registers.
#pragma once

#include <cstdint>

#include "attention/dropout.h"
#include "attention/sm90a_backward_scores.cuh"
#include "attention/sm90a_backward_shared_memory.cuh"
#include "integers.h"
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

// A warpgroup with its own 64 keys.
template <class Config, class Sequences>
class Consumer {
  using Element = typename Config::dtype;
  using Shared = typename Sequences::Shared;
  using Queries = typename Shared::Queries;
  using Gradients = typename Shared::Gradients;
  using Problem = typename Sequences::Problem;
  using Tile = typename Sequences::Tile;
  static constexpr int kScores = Config::B_r / 2;         // registers of S, or of dP
  static constexpr int kSlices = Config::B_r / 16;        // products of dV, or of dK
  static constexpr int kColumns = Config::d_head / 2;     // registers of dV, or of dK
  static constexpr int kPart = Shared::kPartQueries / 2;  // columns of a part of dQ
  // True if the values of a step's queries are read before they are needed: registers are few, and
  // with dropout fewer; and capped scores become probabilities late.
  static constexpr bool kEarly =
      Config::B_r <= 80 && !Sequences::kDropsOut && !Sequences::kCapsScores;
  // True if a part of dQ is half of the queries, with all columns.
  static constexpr bool kHalves = Shared::kPartQueries < Config::B_r;
  // dV is requested when dS of so many slices is made.
  static constexpr int kValuesAfter = Sequences::kChangesScores ? kSlices : Config::dv_after;
  using Fragments = std::uint32_t[kSlices][4];
  using ScoreProduct = ptx::Wgmma<Element, Config::B_r>;
  using PartProduct = ptx::Wgmma<Element, Shared::kPartQueries>;
  using GradientProduct = ptx::Wgmma<Element, Config::d_head>;

 public:
  __device__ Consumer(const Problem& problem, const Shared& shared, int warpgroup)
      : problem_(problem),
        shared_(shared),
        warpgroup_(warpgroup),
        rows_(threadIdx.x % 4 * 8),
        to_scores_(scores_place(threadIdx.x) + warpgroup * Shared::kQueryPanelBytes) {}

  __device__ __forceinline__ void run() {
    const Tile tile = Sequences::tile(problem_, shared_);
    keys_.find(problem_, tile, shared_.tile(), warpgroup_);
    unroll<kColumns>([&](int i) { dk_[i] = 0, dv_[i] = 0; });
    const int steps = problem_.group * tile.blocks;
    if (steps > 0) {
      ptx::mbarrier_wait(shared_.keys_full(), 0);
      ptx::mbarrier_wait(shared_.values_full(), 0);
      clean_keys();
    }
    keys_.for_each_step(problem_, tile, steps,
                        [&](auto masked, int i, int block) { step<masked()>(i, block); });
    store_all([&] { return Sequences::tile_again(problem_, shared_); });
  }

  // One tile after the other: `begin` counts the steps of all.
  __device__ __forceinline__ void run_tiles() {
    const ManyTiles tiles(shared_.tile());
    int begin = 0;
#pragma unroll 1
    for (int n = 0;; ++n) {
      ptx::mbarrier_wait(shared_.keys_full(), n & 1);
      const auto place = Sequences::template place_of<true>(tiles, n);
      if (Sequences::template is_past<true>(problem_, place)) break;
      const Tile tile = Sequences::template tile_at<true>(problem_, place);
      keys_.find(problem_, tile, place, warpgroup_);
      unroll<kColumns>([&](int i) { dk_[i] = 0, dv_[i] = 0; });
      const int steps = problem_.group * tile.blocks;
      ptx::mbarrier_wait(shared_.values_full(), n & 1);
      if (steps > 0) clean_keys();
      keys_.for_each_step(
          problem_, tile, steps, [&](auto masked, int i, int block) { step<masked()>(i, block); },
          begin);
      begin += steps;
      const auto place_again = Sequences::template place_of<true>(tiles, n);
      release(tiles.keys_empty());  // the next K and V come while dK and dV leave
      store_all([&] { return Sequences::tile_at(problem_, place_again); });
    }
  }

 private:
  __device__ __forceinline__ void clean_keys() const {
    if constexpr (Sequences::kCleans)
      clean<Config, Config::B_c>(keys_.begin_of_block(), keys_.end_of_block(), shared_.keys(),
                                 shared_.values());
  }

  template <class FindTile>
  __device__ __forceinline__ void store_all(const FindTile& find_tile) const {
    store(find_tile, problem_.args.dv, dv_, attention::keep_scale_of(problem_.args),
          Sequences::value_columns(problem_));
    store(find_tile, problem_.args.dk, dk_, Sequences::scale(problem_),
          Sequences::columns(problem_));
  }

  template <bool kMasked>
  __device__ __forceinline__ void step(int i, int block) {
    constexpr bool kCleans = kMasked && Sequences::kCleans;
    const int q_stage = i % Config::q_stages, do_stage = i % Config::do_stages;
    const std::uint32_t queries = shared_.template data<Queries>(q_stage);
    const std::uint32_t gradients = shared_.template data<Gradients>(do_stage);
    const std::uint32_t gradients_full = shared_.template full<Gradients>(do_stage);
    const std::uint32_t gradients_parity = i / Config::do_stages & 1;
    ptx::mbarrier_wait(shared_.template full<Queries>(q_stage), i / Config::q_stages & 1);
    if constexpr (kCleans) {
      ptx::mbarrier_wait(gradients_full, gradients_parity);
      clean<Config, Config::B_r>(keys_.first_query(block), keys_.end_query(block), queries,
                                 gradients);
    }
    const auto trace = Sequences::trace(problem_, i, warpgroup_);
    trace.queries(queries, shared_.template rows<Queries>(q_stage), shared_.keys());
    request_scores(scores_, shared_.keys(), queries);
    const std::uint32_t log_sums = shared_.template rows<Queries>(q_stage) + rows_;
    float2 sums[Config::B_r / 8];
    if constexpr (kEarly) unroll<Config::B_r / 8>([&](int c) { sums[c] = row_pair(log_sums, c); });
    ptx::mbarrier_wait(gradients_full, gradients_parity);
    request_scores(products_, shared_.values(), gradients);
    [[maybe_unused]] std::uint32_t dropped[ceil_div(kScores, 32)];
    if constexpr (Sequences::kDropsOut)
      keys_.find_dropped(problem_, Sequences::tile_again(problem_, shared_), i, block, dropped);
    ptx::wgmma_wait_group<1>();
    ptx::pin(scores_);
    trace.scores(scores_);
    auto change = keys_.change_of_scores(problem_, i, block);
    const auto make_probabilities = [&](int c) {
      if constexpr (!kEarly) sums[c] = row_pair(log_sums, c);
      unroll<4>([&](int e) {
        float& score = scores_[4 * c + e];
        score = probability<kCleans>(score * change.factor(), e % 2 == 0 ? sums[c].x : sums[c].y);
      });
    };
    if constexpr (Sequences::kCapsScores) {
      change.cap(scores_);
      if constexpr (kMasked) hide<Config>(problem_, keys_, block, scores_, kNoTanh);
    } else {
      if constexpr (Sequences::kChangesScores) change.apply(scores_);
      unroll<Config::B_r / 8>(make_probabilities);
      if constexpr (kMasked) hide<Config>(problem_, keys_, block, scores_, 0);
    }
    // A wait that is over, but is a branch: ptxas moves no exponentials past it, which would hold
    // up the work that waits for dP.
    ptx::mbarrier_wait(gradients_full, gradients_parity);
    const std::uint32_t deltas = shared_.template rows<Gradients>(do_stage) + rows_;
    float2 delta[Config::B_r / 8];
    if constexpr (kEarly) unroll<Config::B_r / 8>([&](int c) { delta[c] = row_pair(deltas, c); });
    ptx::wgmma_wait_group<0>();
    ptx::pin(products_);
    trace.probabilities(scores_, products_);
    const std::uint32_t gradients_made = shared_.score_gradients(i % 2);
    unroll<kSlices>([&](int slice) {
      if (slice == kValuesAfter) request_values(gradients, slice, gradients_full, gradients_parity);
      // dS of capped scores has a factor that follows from tanh, which is kept until here.
      [[maybe_unused]] float tanh[8];
      if constexpr (Sequences::kCapsScores) {
        // It does cap; but where registers are few ptxas needs a branch, else it lacks some, and
        // has products wait for each other.
        if (Config::d_head < 128 || change.caps()) {
          unroll<8>([&](int e) { tanh[e] = scores_[8 * slice + e]; });
          change.template slant<8>(scores_ + 8 * slice, 8 * slice);
          unroll<2>([&](int half) { make_probabilities(2 * slice + half); });
          if constexpr (kMasked)
            unroll<8>([&](int e) {
              if (tanh[e] == kNoTanh) scores_[8 * slice + e] = 0;
            });
        }
      }
      unroll<2>([&](int half) {
        const int c = 2 * slice + half;
        if constexpr (!kEarly) delta[c] = row_pair(deltas, c);
        unroll<4>([&](int e) {
          float& product = products_[4 * c + e];
          const float probability = scores_[4 * c + e];
          const float sum = e % 2 == 0 ? delta[c].x : delta[c].y;
          if constexpr (Sequences::kDropsOut) {
            if (dropped[(4 * c + e) / 32] >> (4 * c + e) % 32 & 1) scores_[4 * c + e] = 0;
            product = scores_[4 * c + e] * product - probability * sum;
          } else {
            product = probability * (product - sum);
          }
        });
      });
      if constexpr (Sequences::kChangesScores)
        change.template take<8>(products_ + 8 * slice, 8 * slice);
      if constexpr (Sequences::kCapsScores)
        unroll<8>([&](int e) {
          const float factor = 1 - tanh[e] * tanh[e];  // NaN in rows beside a sequence
          products_[8 * slice + e] *= kMasked ? fmaxf(factor, 0) : factor;
        });
      pack(score_gradients_, products_, slice);
      if (slice < kValuesAfter) pack(probabilities_, scores_, slice);
      ptx::stmatrix_x4_transposed(to_scores_ + gradients_made + slice * 16 * kPanelRowBytes,
                                  score_gradients_[slice]);
    });
    if constexpr (Sequences::kChangesScores) change.add_taken();
    trace.score_gradients(products_);
    if (kValuesAfter >= kSlices)
      request_values(gradients, kSlices, gradients_full, gradients_parity);
    ptx::fence_async_shared();
    ptx::named_barrier_sync(kScoresMade, 256);
    ptx::wgmma_wait_group<0>();  // dV
    ptx::pin(dv_);
    pin(probabilities_);
    trace.gradients(gradients, shared_.template rows<Gradients>(do_stage), shared_.values());
    release(shared_.template empty<Gradients>(do_stage));
    float part[kPart];
    request_query_gradients(part, gradients_made);
    request_gradients(dk_, score_gradients_, queries);
    ptx::wgmma_wait_group<1>();  // dQ
    trace.query_gradients(part, kHalves ? warpgroup_ * Shared::kPartQueries : 0,
                          kHalves ? 0 : warpgroup_ * 64);
    give_query_gradients(part, i);
    ptx::wgmma_wait_group<0>();  // dK
    ptx::pin(dk_);
    trace.key_gradients(dk_, dv_);
    pin(score_gradients_);
    release(shared_.template empty<Queries>(q_stage));
  }

  // dV, and the packing of P's remaining slices, from `packed` on. It runs beside dS of these
  // slices.
  __device__ __forceinline__ void request_values(std::uint32_t gradients, int packed,
                                                 std::uint32_t full, std::uint32_t parity) {
    unroll<kSlices>([&](int slice) {
      if (slice >= packed) pack(probabilities_, scores_, slice);
    });
    request_gradients(dv_, probabilities_, gradients);
    // Again a branch, of a wait that is over.
    if constexpr (Sequences::kPersistent)
      ptx::mbarrier_wait(full, parity);
    else
      ptx::mbarrier_wait(shared_.values_full(), 0);
  }

  // d = a b^T of the warpgroup's 64 rows of `a`, K or V, and of all of `b`, Q or dO.
  __device__ __forceinline__ void request_scores(float (&d)[kScores], std::uint32_t a,
                                                 std::uint32_t b) const {
    const std::uint64_t left = ptx::swizzled_descriptor(a + warpgroup_ * 64 * kPanelRowBytes);
    const std::uint64_t right = ptx::swizzled_descriptor(b);
    ptx::pin(d);
    ptx::wgmma_fence();
    unroll<Config::d_head / 16>([&](int k) {
      ScoreProduct::shared_shared(
          d, ptx::advance_wide(left, k / 4 * Shared::kKeyPanelBytes + k % 4 * 32),
          ptx::advance_wide(right, k / 4 * Shared::kQueryPanelBytes + k % 4 * 32), k != 0);
    });
    ptx::wgmma_commit_group();
    ptx::pin(d);
  }

  // d += a b, of 64 keys by the queries in registers, and Q or dO.
  __device__ __forceinline__ void request_gradients(float (&d)[kColumns], Fragments& a,
                                                    std::uint32_t b) const {
    const std::uint64_t right = ptx::swizzled_descriptor(b, Shared::kQueryPanelBytes);
    pin(a);
    ptx::pin(d);
    ptx::wgmma_fence();
    unroll<kSlices>([&](int k) {
      GradientProduct::registers_transposed(d, a[k],
                                            ptx::advance_wide(right, k * 16 * kPanelRowBytes), 1);
    });
    ptx::wgmma_commit_group();
    ptx::pin(d);
  }

  // The warpgroup's part of dQ, over the keys of both, transposed: K^T dS^T, 64 columns of dQ by
  // all of the queries, or by half of them.
  __device__ __forceinline__ void request_query_gradients(float (&d)[kPart],
                                                          std::uint32_t scores) const {
    const std::uint64_t left = ptx::swizzled_descriptor(
        shared_.keys() + (kHalves ? 0 : warpgroup_ * Shared::kKeyPanelBytes));
    const std::uint64_t right = ptx::swizzled_descriptor(
        scores + (kHalves ? warpgroup_ * Shared::kPartQueries * kPanelRowBytes : 0));
    ptx::pin(d);
    ptx::wgmma_fence();
    unroll<Config::B_c / 16>([&](int k) {
      PartProduct::transposed_shared(
          d, ptx::advance_wide(left, k * 16 * kPanelRowBytes),
          ptx::advance_wide(right, k / 4 * Shared::kQueryPanelBytes + k % 4 * 32), k != 0);
    });
    ptx::wgmma_commit_group();
    ptx::pin(d);
  }

  // Hands the part of dQ of step i to the warp that adds it to memory.
  __device__ __forceinline__ void give_query_gradients(float (&d)[kPart], int i) const {
    ptx::pin(d);
    ptx::named_barrier_sync(kPartEmpty + warpgroup_, 160);
    const std::uint32_t to = shared_.query_gradients(warpgroup_) + threadIdx.x % 128 * 16;
    const unsigned threads = warpgroup_ == 0 ? 128 : kLastPartThreads<Config>;
    if (kLastPartThreads<Config> == 128 || threadIdx.x % 128 < threads)
      unroll<kPart / 4>([&](int c) {
        ptx::store_shared(to + c * threads * 16,
                          uint4{__float_as_uint(d[4 * c]), __float_as_uint(d[4 * c + 1]),
                                __float_as_uint(d[4 * c + 2]), __float_as_uint(d[4 * c + 3])});
      });
    ptx::fence_async_shared();
    ptx::named_barrier_arrive(kPartFull + (i & (kWriters<Config> - 1)) * 2 + warpgroup_, 160);
  }

  // The warpgroup's rows of dK or dV, 16 bytes a lane.
  template <class FindTile>
  __device__ __forceinline__ void store(const FindTile& find_tile, const TensorView<4>& tensor,
                                        const float (&d)[kColumns], float factor,
                                        int columns) const {
    const Tile tile = find_tile();
    const int thread = static_cast<int>(ptx::reread_thread_index()), lane = thread % 32;
    const int key = thread % 128 / 32 * 16 + lane / 4, count = keys_.count();
    Element* const to =
        Sequences::template gradient_row<Element>(tensor, tile, warpgroup_, key) + lane % 4 * 8;
    unroll<kColumns / 8>([&](int c) {  // one of the lane's rows, of 32 columns
      std::uint32_t values[4];
      unroll<4>([&](int i) {
        const int e = (c / 2 * 4 + i) * 4 + c % 2 * 2;
        values[i] = ptx::pack<Element>(d[e] * factor, d[e + 1] * factor);
      });
      transpose_quad(values);
      if (key + c % 2 * 8 < count && (!Sequences::kCleans || c / 2 * 32 + lane % 4 * 8 < columns))
        *reinterpret_cast<uint4*>(to + c % 2 * 8 * tensor.stride[1] + c / 2 * 32) =
            uint4{values[0], values[1], values[2], values[3]};
    });
  }

  // The log-sum-exps, or D, of two neighbouring queries of the lane.
  __device__ __forceinline__ static float2 row_pair(std::uint32_t rows, int c) {
    const uint2 bits = ptx::load_shared_8(rows + c * 32);
    return {__uint_as_float(bits.x), __uint_as_float(bits.y)};
  }

  // 16 queries by the warp's 16 keys, as a left operand.
  __device__ __forceinline__ static void pack(Fragments& fragments, const float (&values)[kScores],
                                              int slice) {
    unroll<4>([&](int i) {
      const int e = 8 * slice + 2 * i;
      fragments[slice][i] = ptx::pack<Element>(values[e], values[e + 1]);
    });
  }

  __device__ __forceinline__ static void pin(Fragments& fragments) {
    unroll<kSlices>([&](int i) { ptx::pin(fragments[i]); });
  }

  __device__ __forceinline__ static void release(std::uint32_t empty) {
    __syncwarp();
    if (ptx::reread_thread_index() % 32 == 0) ptx::mbarrier_arrive(empty);
  }

  // Where the lane's address of a transposed stmatrix of the warp's 16 keys by 16 queries lies in
  // its warpgroup's panel of dS: matrix lane / 8, 8 keys of its row lane % 8, a query.
  __device__ __forceinline__ static std::uint32_t scores_place(unsigned thread) {
    const unsigned lane = thread % 32, chunk = thread % 128 / 32 * 2 + lane / 8 % 2;
    return (lane / 16 * 8 + lane % 8) * kPanelRowBytes + ((chunk ^ lane % 8) << 4);
  }

  const Problem& problem_;
  const Shared shared_;
  const int warpgroup_;
  const std::uint32_t rows_;       // the lane's first queries, in bytes of their rows
  const std::uint32_t to_scores_;  // the lane's place in dS
  typename Sequences::Keys keys_;
  float dk_[kColumns], dv_[kColumns];
  float scores_[kScores], products_[kScores];  // S, then P; dP, then dS
  Fragments probabilities_, score_gradients_;  // 64 keys by 16 queries
};

}  // namespace kernelmint::attention_backward::sm90a
