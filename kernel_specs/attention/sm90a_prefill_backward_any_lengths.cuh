// Sequences of any lengths, with windows: which blocks of queries a block of keys meets, and where
// both lie; and scores that are more than products times a factor.
#pragma once

#include <cstdint>
#include <type_traits>

#include "attention/dropout.cuh"
#include "attention/prefill_backward_any_lengths.cuh"
#include "attention/sm90a_backward_producer.cuh"
#include "attention/sm90a_backward_scores.cuh"
#include "attention/sm90a_backward_shared_memory.cuh"
#include "attention/sm90a_backward_trace.cuh"
#include "attention/sm90a_backward_wide_shared_memory.cuh"
#include "attention/sm90a_prefill_backward_problem.h"
#include "attention/softcap.cuh"
#include "integers.h"
#include "ptx/math.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/special_registers.cuh"
#include "register_tile.cuh"
#include "tensor_view.h"

namespace kernelmint::flash_prefill_backward::sm90a {

using attention_backward::sm90a::BlockOfStep, attention_backward::sm90a::kIsWide,
    attention_backward::sm90a::Turn;

// The main kernel's view of a call, as flash_backward's EqualSequences is.
template <class Config, bool kChanges>
struct AnyLengths : flash_prefill_backward::AnyLengths<Config, Problem<typename Config::Args>> {
  using Problem = sm90a::Problem<typename Config::Args>;
  using Base = flash_prefill_backward::AnyLengths<Config, Problem>;
  using Tile = flash_prefill_backward::Tile;
  using Base::kFarthest, Base::reach, Base::nth_block, Base::block_index, Base::blocks_before;
  using Shared =
      std::conditional_t<kIsWide<Config>,
                         attention_backward::sm90a::WideSharedMemory<Config, sizeof(Tile)>,
                         attention_backward::sm90a::SharedMemory<Config, sizeof(Tile)>>;
  using Lane = attention_backward::sm90a::ScoresOfLane<Config>;
  using NoTrace = attention_backward::sm90a::NoTrace;

  static constexpr bool kChangesScores = kChanges;
  static constexpr bool kGivesSlopes = attention::GivesSlopes<typename Config::Args>;
  static constexpr bool kOneCounter = false;
  static constexpr bool kCleans = true;
  static constexpr bool kPersistent = false;
  static constexpr bool kSaysWhenDone = false;
  static constexpr bool kDropsOut = attention::DropsOut<typename Config::Args>;

  __device__ __forceinline__ static NoTrace trace(const Problem&, int, int) { return {}; }

  __device__ static void find_tile(const Problem& problem, const Shared& shared) {
    if (threadIdx.x / 32 != 2) return;
    const Tile tile = Base::tile_of(problem);
    if constexpr (kDropsOut) Base::clear_keys_before(problem, tile, threadIdx.x % 32, 32);
    if (threadIdx.x % 32 == 0)
      unroll<4>([&](int i) {
        ptx::store_shared(shared.tile() + 16 * i, reinterpret_cast<const uint4*>(&tile)[i]);
      });
  }
  __device__ __forceinline__ static Tile tile(const Problem&, const Shared& shared) {
    Tile tile;
    unroll<4>([&](int i) {
      reinterpret_cast<uint4*>(&tile)[i] = ptx::load_shared_16(shared.tile() + 16 * i);
    });
    return tile;
  }
  __device__ __forceinline__ static Tile tile_again(const Problem& problem, const Shared& shared) {
    return tile(problem, shared);
  }

  __device__ __forceinline__ static int query_row(const Tile& tile, int block) {
    return tile.query_row_ + block * Config::B_r;
  }
  __device__ __forceinline__ static int key_row(const Tile& tile) {
    return tile.key_row_ + tile.key_block * Config::B_c;
  }

  // A step's block of queries.
  __device__ __forceinline__ static BlockOfStep block_of_step(const Problem& problem,
                                                              const Tile& tile, int step) {
    const int inner_steps = problem.heads_first ? tile.blocks : problem.group;
    const int outer = step / inner_steps, inner = step - outer * inner_steps;
    const int block = nth_block(problem, tile, problem.heads_first ? inner : outer);
    const int head = tile.kv_head * problem.group + (problem.heads_first ? outer : inner);
    return {block, block_index(problem, tile, head, block)};
  }
  // The turn of a tile's step, and whether it stores dQ: blocks of keys add to a block of queries
  // in their order, or from the last one on, and the first of them stores.
  __device__ __forceinline__ static Turn turn(const Problem& problem, const Tile& tile, int index,
                                              int block, int) {
    if (!problem.stores_first) return {problem.counters, 0, false};
    const unsigned before = blocks_before(problem, tile, block);
    const unsigned least = Config::deterministic ? before : min(before, 1u);
    return {problem.counters + index, least, before == 0};
  }

  // The keys of a warpgroup, 64, or of all if the head is wide, and the queries that see them.
  class Keys {
    static constexpr int kCount = kIsWide<Config> ? Config::B_c : 64;

   public:
    __device__ __forceinline__ void find(const Problem& problem, const Tile& tile, int warpgroup) {
      const int first = tile.key_block * Config::B_c + warpgroup * 64;
      begin_ = tile.first_key - first, end_ = tile.end_key - first, rows_ = tile.key_rows - first;
      ahead_ = first - tile.own;
      left_ = reach(problem.args.window_left), right_ = reach(problem.args.window_right);
      first_query_ = tile.first_query, end_query_ = tile.end_query;
      warpgroup_ = warpgroup;
      if constexpr (kChanges)
        sequence_ = tile.sequence, kv_head_ = tile.kv_head, blocks_ = tile.blocks;
    }

    // The tile's used keys, counted from its first one.
    __device__ __forceinline__ int begin_of_block() const { return begin_ + warpgroup_ * 64; }
    __device__ __forceinline__ int end_of_block() const { return end_ + warpgroup_ * 64; }
    // A block's used queries.
    __device__ __forceinline__ int first_query(int block) const {
      return first_query_ - block * Config::B_r;
    }
    __device__ __forceinline__ int end_query(int block) const {
      return end_query_ - block * Config::B_r;
    }

    // f(is masked, step, block) for each step. Of blocks of queries in a row all see all keys;
    // those before, and those after, do not.
    template <class F>
    __device__ __forceinline__ void for_each_step(const Problem& problem, const Tile& tile,
                                                  int steps, const F& f) const {
      const int first = tile.first_block, behind = first + tile.blocks;
      int begin = max(ahead_ + kCount - 1 - right_, first_query_),
          end = min(ahead_ + left_ + 1, end_query_);
      if (begin_ > 0 || end_ < kCount) end = -1;
      begin = min(max(ceil_div(max(begin, 0), Config::B_r), first), behind);
      end = end < 0 ? begin : min(max(end / Config::B_r, begin), behind);
      // Steps in a row of one block, and of one head.
      const int each = problem.heads_first ? 1 : problem.group, all = tile.blocks * each;
      const int masked = (problem.from_first ? begin - first : behind - end) * each;
      const int whole = masked + (end - begin) * each;
      for (int i = 0, start = 0, stop = masked; i < steps;) {
#pragma unroll 1
        for (; i < stop; ++i) f(std::true_type(), i, nth_block(problem, tile, (i - start) / each));
#pragma unroll 1
        for (; i < start + whole; ++i)
          f(std::false_type(), i, nth_block(problem, tile, (i - start) / each));
        if (i == start + all) {
          start = i;
          stop = i + masked;
        } else {
          stop = start + all;
        }
      }
    }

    __device__ __forceinline__ auto hidden(int block, int key, int first_query) const {
      if constexpr (kIsWide<Config>) {
        // The keys that a query sees, of the block's that are used, from the lane's first key on.
        struct Seen {
          int first, count;
        };
        const auto seen = [&](int column) {
          const int own = block * Config::B_r + first_query + column - ahead_ - key;
          const int first = max(own - left_, begin_ - key);
          return Seen{first, max(min(own + right_ + 1, end_ - key) - first, 0)};
        };
        return [low = seen(0), high = seen(8)](int row, int column) {
          const Seen& keys = column == 0 ? low : high;
          return static_cast<unsigned>(row - keys.first) >= static_cast<unsigned>(keys.count);
        };
      } else {
        // How many keys, of those that the first query sees, are after the lane's two keys. No
        // query sees a key that is not used.
        const int after = right_ - ahead_ - key + block * Config::B_r + first_query;
        const auto unless_unused = [&](int row) {
          return key + row >= begin_ && key + row < end_ ? after - row : -kFarthest;
        };
        return [low = unless_unused(0), high = unless_unused(8),
                seen = static_cast<unsigned>(left_) + right_](int row, int column) {
          return static_cast<unsigned>((row == 0 ? low : high) + column) > seen;
        };
      }
    }

    // A bit for each of a step's scores that is dropped, as `Lane` counts them. Registers are few:
    // the tile is read again.
    template <int kWords>
    __device__ __forceinline__ void find_dropped(const Problem& problem, const Tile& tile, int step,
                                                 int block,
                                                 std::uint32_t (&dropped)[kWords]) const {
      const int head = tile.kv_head * problem.group +
                       (problem.heads_first ? step / tile.blocks : step % problem.group);
      attention::find_dropped<Config::B_r / 2>(
          attention::dropout_of(problem.args, tile.sequence, head),
          attention::drop_threshold(problem.args.dropout_p), block * Config::B_r,
          tile.key_block * Config::B_c + warpgroup_ * 64 + Lane::first_key(), dropped);
    }

    // Scores of a step, made of products.
    class Change {
     public:
      __device__ __forceinline__ Change(const Problem& problem, const Keys& keys, int step,
                                        int block)
          : problem_(problem) {
        if constexpr (kChanges) {
          const auto& slopes = problem.args.alibi_slopes;
          slope_ = slopes.data == nullptr
                       ? 0
                       : *slopes.template at<const float>(
                             keys.sequence_, keys.kv_head_ * problem.group +
                                                 (problem.heads_first ? step / keys.blocks_
                                                                      : step % problem.group));
          if constexpr (kGivesSlopes)
            in_group_ = problem.heads_first ? step / keys.blocks_ : step % problem.group;
          ahead_ = keys.ahead_ + Lane::first_key() - block * Config::B_r - Lane::first_query();
        }
      }

      // The factor that makes a score an exponent of two, before the log-sum-exp is subtracted.
      __device__ __forceinline__ float factor() const {
        return kChanges ? kLog2E : problem_.scale_log2;
      }

      template <int kCount>
      __device__ __forceinline__ void apply(float (&scores)[kCount]) const {
        unroll<kCount>([&](int e) { scores[e] *= problem_.args.softmax_scale; });
        if (problem_.cap > 0) {
          const attention::Softcap capped(problem_.cap);
          unroll<kCount>([&](int e) { scores[e] = capped(scores[e]); });
        }
        if (slope_ != 0) unroll<kCount>([&](int e) { scores[e] -= slope_ * distance(e); });
      }

      // The derivative of a score by the product times the factor. The capped score follows from
      // its probability.
      __device__ __forceinline__ float slope(float probability, float log_sum, int e) const {
        if (problem_.cap == 0) return 1;
        float score = (__log2f(fmaxf(probability, 0x1p-126f)) + log_sum) * (1 / kLog2E);
        score += slope_ * distance(e);
        const float tanh = ptx::clamp(score / problem_.cap, 1);
        return (1 - tanh) * (1 + tanh);
      }

      // Takes the gradient of a score for that of the slope, and adds what was taken to the
      // thread's sum.
      __device__ __forceinline__ void take(float gradient, int e) {
        if constexpr (kGivesSlopes) of_slope_ += gradient * distance(e);
      }
      __device__ __forceinline__ void add_taken() const {
        if constexpr (kGivesSlopes)
          atomicAdd(problem_.slope_sums +
                        (std::int64_t{blockIdx.x} * problem_.group + in_group_) *
                            (128 * Config::n_warpgroups) +
                        ptx::reread_thread_index() - 128,
                    of_slope_);
      }

     private:
      __device__ __forceinline__ float distance(int e) const {
        return static_cast<float>(abs(ahead_ + Lane::key(e) - Lane::query(e)));
      }

      const Problem& problem_;
      float slope_ = 0, of_slope_ = 0;
      int ahead_ = 0, in_group_ = 0;
    };
    __device__ __forceinline__ Change change_of_scores(const Problem& problem, int step,
                                                       int block) const {
      return Change(problem, *this, step, block);
    }

    __device__ __forceinline__ int count() const { return rows_; }

   private:
    int begin_, end_, rows_;  // counted from the warpgroup's first key
    int ahead_;               // how far that key is ahead of the key of the region's first query
    int left_, right_, first_query_, end_query_, warpgroup_;
    int sequence_, kv_head_, blocks_;
  };

  template <class Element>
  __device__ __forceinline__ static Element* gradient_row(const TensorView<4>& tensor,
                                                          const Tile& tile, int warpgroup,
                                                          int key) {
    const std::int64_t row =
        std::int64_t{tile.key_row_} + tile.key_block * Config::B_c + warpgroup * 64 + key;
    return tensor.template as<Element>() + tile.key_entry_ * tensor.stride[0] +
           row * tensor.stride[1] + tile.kv_head * tensor.stride[2];
  }
};

}  // namespace kernelmint::flash_prefill_backward::sm90a
