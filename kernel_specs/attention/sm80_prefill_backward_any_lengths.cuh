// Sequences of any lengths, with windows, and scores that are more than products times a factor, on
// compute capability 8.0 and later.
#pragma once

#include <cstdint>

#include "attention/prefill_backward_any_lengths.cuh"
#include "attention/prefill_backward_problem.h"
#include "attention/sm80_backward_block.cuh"
#include "attention/softcap.cuh"
#include "ptx/log2.cuh"
#include "ptx/shared_memory.cuh"
#include "register_tile.cuh"

namespace kernelmint::flash_prefill_backward::sm80 {

using attention_backward::sm80::Position;

// Rows and columns of a tensor; the rest of a tile in shared memory is zero, whatever lies beside a
// sequence.
struct Part {
  int begin, end, columns;
  __device__ __forceinline__ bool has(int row, int column) const {
    return row >= begin && row < end && column < columns;
  }
};

// The main kernel's view of a call, as flash_backward's EqualSequences is.
template <class Config, bool kChanges>
struct AnyLengths : flash_prefill_backward::AnyLengths<Config, Problem<typename Config::Args>> {
  using Problem = flash_prefill_backward::Problem<typename Config::Args>;
  using Base = flash_prefill_backward::AnyLengths<Config, Problem>;
  // In shared memory: registers are few. All tiles of a call go the same way.
  struct alignas(16) TileInMemory {
    int sequence, kv_head;
    int query_row_, first_query, end_query;
    int key_row_, key_rows, first_key, end_key;
    int key_block;
    int first_block, blocks;
    int first_index, own;
    int query_entry, key_entry;
  };
  using Tile = const TileInMemory&;
  using Base::kFarthest, Base::reach;

  static constexpr int kTileBytes = sizeof(TileInMemory);
  static constexpr bool kChangesScores = kChanges;
  static constexpr bool kGivesSlopes = attention::GivesSlopes<typename Config::Args>;
  static constexpr bool kSeesFirstKeys = false;
  static constexpr bool kDropsOut = attention::DropsOut<typename Config::Args>;

  // By all threads, before they ask for the tile.
  __device__ __forceinline__ static void find_tile(const Problem& problem) {
    if (threadIdx.x / 32 == 0) {
      const auto tile = Base::template tile_of<TileInMemory>(problem, static_cast<int>(blockIdx.x));
      if constexpr (kDropsOut) Base::clear_keys_before(problem, tile, threadIdx.x, 32);
      if (threadIdx.x == 0) shared_tile() = tile;
    }
    __syncthreads();
  }
  __device__ __forceinline__ static Tile tile(const Problem&) { return shared_tile(); }
  __device__ __forceinline__ static Tile tile_again(const Problem&) { return shared_tile(); }

  __device__ __forceinline__ static float factor(const Problem& problem) {
    return kChanges ? problem.to_log2 : problem.scale_log2;
  }

  __device__ __forceinline__ static int nth_block(const Problem& problem, Tile tile, int n) {
    return tile.first_block + (problem.from_first ? n : tile.blocks - 1 - n);
  }
  __device__ __forceinline__ static int query_entry(Tile tile) { return tile.query_entry; }
  __device__ __forceinline__ static int key_entry(Tile tile) { return tile.key_entry; }
  __device__ __forceinline__ static int query_row(Tile tile) { return tile.query_row_; }
  __device__ __forceinline__ static Part used_queries(const Problem&, Tile tile, int columns) {
    return {tile.first_query, tile.end_query, columns};
  }
  __device__ __forceinline__ static int key_row(Tile tile) { return tile.key_row_; }
  __device__ __forceinline__ static Part used_keys(const Problem&, Tile tile, int columns) {
    return {tile.first_key, tile.end_key, columns};
  }
  __device__ __forceinline__ static Part all_keys(const Problem&, Tile tile, int columns) {
    return {0, tile.key_rows, columns};
  }

  __device__ __forceinline__ static bool has(const Problem& problem, Tile tile,
                                             const Position& at) {
    return at.n < tile.blocks && at.head < problem.group;
  }
  __device__ __forceinline__ static Position after(const Problem& problem, Tile tile,
                                                   const Position& at) {
    if (problem.heads_first)
      return at.n + 1 < tile.blocks ? Position{at.n + 1, at.head} : Position{0, at.head + 1};
    return at.head + 1 < problem.group ? Position{at.n, at.head + 1} : Position{at.n + 1, 0};
  }

  // Probabilities are 0 where a query does not see a key, and in rows beside the sequence, where 0
  // times a key may be NaN: of keys from `key` and of queries from `query` on.
  template <class Scores>
  __device__ __forceinline__ static void hide(const Problem& problem, Tile tile, int key, int query,
                                              Scores& probabilities) {
    if (query < tile.first_query || query + Scores::kColumns > tile.end_query)
      hide_columns(tile.first_query - query, tile.end_query - query, probabilities);
    const int left = reach(problem.args.window_left), right = reach(problem.args.window_right);
    const int ahead =
        key - tile.own - query;  // how far the first key is ahead of the first query's own
    if (ahead + Scores::kRows - 1 <= right && ahead - (Scores::kColumns - 1) >= -left &&
        key >= tile.first_key && key + Scores::kRows <= tile.end_key)
      return;
    // How many keys, of those that the lane's first query sees, are after its first key. A used key
    // is seen if that number is from 0 to `seen`.
    const int lane = threadIdx.x % 32;
    const int after = right - ahead - Scores::first_row(lane) + Scores::first_column(lane);
    const unsigned seen = static_cast<unsigned>(left) + right;
    const int begin = tile.first_key - key - Scores::first_row(lane);
    const int end = tile.end_key - key - Scores::first_row(lane);
    unroll<Scores::kLaneRows>([&](int row) {
      const int of_row = Scores::row_of(row);
      const int rest = of_row >= begin && of_row < end ? after - of_row : -kFarthest;
      unroll<Scores::kLaneColumns>([&](int column) {
        if (static_cast<unsigned>(rest + Scores::column_of(column)) > seen)
          probabilities(row, column) = 0;
      });
    });
  }

  // Scores made of products, of keys from `key` and of queries from `query` on.
  template <class Scores>
  class Change {
   public:
    __device__ __forceinline__ Change(const Problem& problem, Tile tile, int head, int key,
                                      int query)
        : problem_(problem) {
      if constexpr (kGivesSlopes)
        sums_ = problem.slope_sums +
                (std::int64_t{blockIdx.x} * problem.group + head % problem.group) * Config::threads;
      const auto& slopes = problem.args.alibi_slopes;
      const int lane = threadIdx.x % 32;
      slope_ = slopes.data == nullptr ? 0
                                      : *slopes.template at<const float>(tile.sequence, head) *
                                            (kLog2E * problem.from_log2);
      ahead_ = static_cast<float>(key - tile.own - query + Scores::first_row(lane) -
                                  Scores::first_column(lane));
    }

    __device__ __forceinline__ void apply(Scores& scores) const {
      scores.for_each([&](float& score) { score *= problem_.to_score; });
      if (problem_.cap > 0) {
        const attention::Softcap tanh(1);
        scores.for_each([&](float& score) { score = tanh(score); });
      }
      if (slope_ != 0)
        unroll<Scores::kLaneRows>([&](int row) {
          unroll<Scores::kLaneColumns>(
              [&](int column) { scores(row, column) -= slope_ * distance(row, column); });
        });
    }

    // Gradients of scores, of 16 queries, become gradients of products times the factor. A capped
    // score follows from its probability, of which 0 has no gradient.
    __device__ __forceinline__ void differentiate(const Scores& probabilities, Scores& gradients,
                                                  int slice, std::uint32_t log_sums) const {
      if constexpr (kGivesSlopes) add_to_slope(gradients, slice);
      if (problem_.cap == 0) return;
      unroll<2>([&](int half) {
        const int first = 2 * (2 * slice + half);
        const uint2 sums = ptx::load_shared_8(log_sums + first * 16);
        const auto for_each = [&](const auto& f) {
          unroll<Scores::kLaneRows>([&](int row) { unroll<2>([&](int side) { f(row, side); }); });
        };
        float tanh[Scores::kLaneRows][2];
        for_each([&](int row, int side) {
          const float log_sum = __uint_as_float(side == 0 ? sums.x : sums.y);
          const float score = ptx::log2(probabilities(row, first + side)) + log_sum;
          tanh[row][side] = score * problem_.from_log2;
        });
        if (slope_ != 0)
          for_each(
              [&](int row, int side) { tanh[row][side] += slope_ * distance(row, first + side); });
        for_each([&](int row, int side) {
          const float t = tanh[row][side];
          gradients(row, first + side) *= fmaxf(1 - t * t, 0);
        });
      });
    }

   private:
    // Adds to the thread's sum for the gradient of the slope.
    __device__ __forceinline__ void add_to_slope(const Scores& gradients, int slice) const {
      float sum = 0;
      unroll<4>([&](int i) {
        const int column = 4 * slice + i;
        unroll<Scores::kLaneRows>(
            [&](int row) { sum += gradients(row, column) * distance(row, column); });
      });
      atomicAdd(sums_ + ptx::reread_thread_index(), sum);
    }

    __device__ __forceinline__ float distance(int row, int column) const {
      return fabsf(ahead_ + static_cast<float>(Scores::row_of(row) - Scores::column_of(column)));
    }

    const Problem& problem_;
    float* sums_ = nullptr;
    float slope_, ahead_;
  };

 private:
  // But for those from `begin` to before `end`.
  template <class Scores>
  __device__ __forceinline__ static void hide_columns(int begin, int end, Scores& probabilities) {
    const int first = Scores::first_column(threadIdx.x % 32);
    unroll<Scores::kLaneColumns>([&](int column) {
      const int of_lane = first + Scores::column_of(column);
      if (of_lane >= begin && of_lane < end) return;
      unroll<Scores::kLaneRows>([&](int row) { probabilities(row, column) = 0; });
    });
  }

  __device__ __forceinline__ static TileInMemory& shared_tile() {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    return *reinterpret_cast<TileInMemory*>(
        shared_memory + attention_backward::sm80::SharedMemory<Config, kTileBytes>::kTile);
  }
};

}  // namespace kernelmint::flash_prefill_backward::sm80
