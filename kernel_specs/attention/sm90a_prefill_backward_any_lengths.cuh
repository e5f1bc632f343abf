// Sequences of any lengths, with windows: which blocks of queries a block of keys meets, and where
// both lie; and scores that are more than products times a factor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "attention/dropout.cuh"
#include "attention/prefill_backward_any_lengths.cuh"
#include "attention/prefill_backward_rows.cuh"
#include "attention/sm90a_backward_producer.cuh"
#include "attention/sm90a_backward_scores.cuh"
#include "attention/sm90a_backward_shared_memory.cuh"
#include "attention/sm90a_backward_sum_maker.cuh"
#include "attention/sm90a_backward_trace.cuh"
#include "attention/sm90a_backward_wide_shared_memory.cuh"
#include "attention/sm90a_prefill_backward_order.cuh"
#include "attention/sm90a_prefill_backward_problem.h"
#include "attention/tanh.cuh"
#include "integers.h"
#include "ptx/atomic.cuh"
#include "ptx/log2.cuh"
#include "ptx/math.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/special_registers.cuh"
#include "register_tile.cuh"
#include "tensor_view.h"

namespace kernelmint::flash_prefill_backward::sm90a {

using attention_backward::sm90a::BlockOfStep, attention_backward::sm90a::kIsWide,
    attention_backward::sm90a::ManyTiles, attention_backward::sm90a::Turn;

// Products become scores by a factor; by slopes, too; or by a cap, and slopes if there are any.
enum class Scores { kScaled, kSlanted, kCapped };

// The main kernel's view of a call, as flash_backward's EqualSequences is.
template <class Config, Scores kScores>
struct AnyLengths : flash_prefill_backward::AnyLengths<Config, Problem<typename Config::Args>> {
  using Problem = sm90a::Problem<typename Config::Args>;
  using Base = flash_prefill_backward::AnyLengths<Config, Problem>;
  using Tile = flash_prefill_backward::Tile;
  using Base::kFarthest, Base::reach, Base::nth_block, Base::block_index;

  // True if a thread block has many tiles.
  static constexpr bool kPersistent = [] {
    if constexpr (requires { Config::persistent; }) return Config::persistent;
    return false;
  }();
  // True if a warp makes D beside the products, unless scores are changed.
  static constexpr bool kMayMakeSums = [] {
    if constexpr (requires { Config::makes_sums; }) return Config::makes_sums;
    return false;
  }();
  static constexpr int kTilesBytes = ManyTiles::kBytes + ManyTiles::kDescriptions * sizeof(Tile);
  static constexpr int kTileBytes = (kPersistent ? kTilesBytes : sizeof(Tile)) +
                                    (kMayMakeSums ? attention_backward::sm90a::kSumMakerBytes : 0);
  using Shared = std::conditional_t<kIsWide<Config>,
                                    attention_backward::sm90a::WideSharedMemory<Config, kTileBytes>,
                                    attention_backward::sm90a::SharedMemory<Config, kTileBytes>>;
  using Lane = attention_backward::sm90a::ScoresOfLane<Config>;
  using NoTrace = attention_backward::sm90a::NoTrace;

  static constexpr bool kChangesScores = kScores != Scores::kScaled;
  static constexpr bool kCapsScores = kScores == Scores::kCapped;
  static constexpr bool kGivesSlopes = attention::GivesSlopes<typename Config::Args>;
  static constexpr bool kCleans = true;
  static constexpr bool kMakesSums = kMayMakeSums && !kChangesScores;
  static constexpr bool kDropsOut = attention::DropsOut<typename Config::Args>;

  __device__ __forceinline__ static NoTrace trace(const Problem&, int, int) { return {}; }

  __device__ static void find_tile(const Problem& problem, const Shared& shared) {
    if (kPersistent || threadIdx.x / 32 != 2) return;
    Tile tile = tile_of(problem, static_cast<int>(blockIdx.x));
    if (tile.blocks < 0) tile = Tile{};
    if constexpr (kDropsOut) Base::clear_keys_before(problem, tile, threadIdx.x % 32, 32);
    if (threadIdx.x % 32 == 0) store_tile(tile, shared.tile());
  }
  __device__ __forceinline__ static Tile tile(const Problem& problem, const Shared& shared) {
    return tile_at(problem, shared.tile());
  }
  __device__ __forceinline__ static Tile tile_again(const Problem& problem, const Shared& shared) {
    return tile(problem, shared);
  }

  // Takes the thread block's n-th tile: its description, whose number of blocks is negative if
  // there are no more. A tile waits for tiles before it, which some thread block has taken before.
  __device__ static void take_tile(const Problem& problem, const ManyTiles& tiles, int n) {
    int index = n == 0 ? static_cast<int>(blockIdx.x) : problem.tiles;
    if (problem.next_tile != nullptr) index = static_cast<int>(atomicAdd(problem.next_tile, 1u));
    Tile tile{.blocks = -1};
    if (index < problem.tiles) tile = tile_of(problem, index);
    store_tile(tile, tiles.description<sizeof(Tile)>(n));
  }
  // Where its description is.
  using Place = std::uint32_t;
  template <bool kWholeWarp>
  __device__ __forceinline__ static Place place_of(const ManyTiles& tiles, int n) {
    return tiles.description<sizeof(Tile)>(n);
  }
  // A whole warp knows that its lanes have the same number of blocks.
  template <bool kWholeWarp>
  __device__ __forceinline__ static bool is_past(const Problem&, Place place) {
    int blocks = static_cast<int>(ptx::load_shared_4(place + offsetof(Tile, blocks)));
    if constexpr (kWholeWarp) blocks = __shfl_sync(~0u, blocks, 0);
    return blocks < 0;
  }
  template <bool kWholeWarp = false>
  __device__ __forceinline__ static Tile tile_at(const Problem&, Place place) {
    Tile tile;
    unroll<sizeof(Tile) / 16>(
        [&](int i) { reinterpret_cast<uint4*>(&tile)[i] = ptx::load_shared_16(place + 16 * i); });
    if constexpr (kWholeWarp) tile.blocks = __shfl_sync(~0u, tile.blocks, 0);
    return tile;
  }

  // The tile again, in each step of the warp that adds dQ, whose registers are few.
  __device__ __forceinline__ static Tile tile_in_step(const Problem& problem, const Tile&,
                                                      Place place) {
    return tile_at(problem, place);
  }

  // Whoever adds a tile's dQ says when it is in memory: the last kernel waits for no other
  // sequences and heads.
  static constexpr bool kSaysWhenDone = true;
  __device__ __forceinline__ static void say_done(const Problem& problem, const Tile& tile) {
    if (problem.tiles_done == nullptr || tile.key_block * Config::B_c >= tile.key_rows) return;
    const int kv_heads = static_cast<int>(problem.args.Hk);
    ptx::add_release(problem.tiles_done + tile.sequence * kv_heads + tile.kv_head, 1);
  }

  // The index-th part of the rows whose values the main kernel makes: a block of queries.
  class alignas(16) Rows {
   public:
    __device__ __forceinline__ Rows(const Problem& problem, int index) : at_(problem, index) {}

    __device__ __forceinline__ bool exist(const Problem&) const { return at_.exists(); }
    __device__ __forceinline__ int row() const { return at_.region.first_row + first(); }
    __device__ __forceinline__ int head() const { return at_.head; }
    __device__ __forceinline__ int entry() const { return at_.region.entry; }
    __device__ __forceinline__ void keep(const Problem& problem, int row, float sum) const {
      if (row < Config::B_r) keep_values(problem, at_, row, sum);
    }
    __device__ __forceinline__ void say_done(const Problem& problem) const {
      if (first() >= at_.region.end || first() + Config::B_r <= at_.region.begin) return;
      const int kv_heads = static_cast<int>(problem.args.Hk);
      ptx::add_release(problem.sums_done + at_.sequence * kv_heads + at_.head / problem.group, 1);
    }

   private:
    __device__ __forceinline__ int first() const { return at_.block * Config::B_r; }

    BlockOfQueries<Config, Problem> at_;
  };
  __device__ __forceinline__ static bool leaves_sums(const Problem& problem) {
    return problem.next_sums != nullptr;
  }
  __device__ __forceinline__ static unsigned* next_sums(const Problem& problem) {
    return problem.next_sums;
  }
  // Until D of all queries of a tile's heads is there, as far as they are used; by the thread that
  // copies them.
  __device__ __forceinline__ static void wait_for_sums(const Problem& problem, const Tile& tile) {
    if (problem.next_sums == nullptr || tile.blocks <= 0) return;
    const int blocks = (tile.end_query - 1) / Config::B_r + 1 - tile.first_query / Config::B_r;
    const int kv_heads = static_cast<int>(problem.args.Hk);
    ptx::wait_alone_for_counter(problem.sums_done + tile.sequence * kv_heads + tile.kv_head,
                                problem.group * blocks);
    ptx::fence_async_global();
  }
  __device__ __forceinline__ static std::uint32_t sum_boxes(const Shared& shared) {
    return shared.tile() + kTilesBytes;
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
  // True if a sequence's counter, of each key/value head, is the same for all blocks of queries.
  __device__ __forceinline__ static bool one_counter(const Problem& problem) {
    return !Config::deterministic && problem.one_counter;
  }
  // The blocks of keys that add to a block of queries before a tile's; the last section's may go
  // back though the others go through their queries from the first one on.
  __device__ __forceinline__ static int blocks_before(const Problem& problem, const Tile& tile,
                                                      int block) {
    return problem.from_first && !tile.from_first ? tile.key_block - tile.first_key / Config::B_c
                                                  : Base::blocks_before(problem, tile, block);
  }
  // The turn of a tile's step, and whether it stores dQ: blocks of keys add to a block of queries
  // in their order, or from the last one on, and the first of them stores. With one counter, all
  // end at the same block of queries, whose dQ is zero before.
  __device__ __forceinline__ static Turn turn(const Problem& problem, const Tile& tile, int index,
                                              int block, int step) {
    if (!problem.stores_first) return {problem.counters, 0, false};
    if (one_counter(problem)) {
      const bool is_first = tile.key_block == tile.first_key / Config::B_c;
      const int before = tile.first_block + tile.blocks - 1 - block;
      const unsigned stored = problem.heads_first
                                  ? step / tile.blocks * (tile.blocks - 1) + before - 1
                                  : (before - 1) * problem.group + step % problem.group;
      unsigned* const counter =
          problem.counters + tile.kv_head * problem.group * problem.query_blocks + tile.first_index;
      return {counter, before == 0 ? 0 : stored + !is_first, is_first && before > 0};
    }
    const unsigned before = blocks_before(problem, tile, block);
    const unsigned least = Config::deterministic ? before : min(before, 1u);
    return {problem.counters + index, least, before == 0};
  }

  // The keys of a warpgroup, 64, or of all if the head is wide, and the queries that see them. The
  // tile's description is read again whenever it is needed: registers are few.
  class Keys {
    static constexpr int kCount = kIsWide<Config> ? Config::B_c : 64;

   public:
    __device__ __forceinline__ void find(const Problem&, const Tile&, Place place, int warpgroup) {
      place_ = place, warpgroup_ = warpgroup;
    }

    // The tile's used keys, counted from its first one.
    __device__ __forceinline__ int begin_of_block() const { return first_key() - first_of_block(); }
    __device__ __forceinline__ int end_of_block() const { return end_key() - first_of_block(); }
    // A block's used queries.
    __device__ __forceinline__ int first_query(int block) const {
      return word(offsetof(Tile, first_query)) - block * Config::B_r;
    }
    __device__ __forceinline__ int end_query(int block) const {
      return word(offsetof(Tile, end_query)) - block * Config::B_r;
    }

    // f(is masked, step, block) for each step, counted from `before` on; only a masked step's block
    // is right if scores are products. Of blocks of queries in a row all see all keys; those
    // before, and those after, do not.
    template <class F>
    __device__ __forceinline__ void for_each_step(const Problem& problem, const Tile&, int steps,
                                                  const F& f, int before = 0) {
      if constexpr (kChangesScores) before_ = before;
      for (int i = 0, start = 0; i < steps;) {
        const Part part = part_of(problem, i, start);
        const auto block = [&] {
          const int n = problem.heads_first ? i - start : (i - start) / problem.group;
          const bool from_first = word(offsetof(Tile, from_first)) & 1;
          return word(offsetof(Tile, first_block)) + (from_first ? n : blocks() - 1 - n);
        };
#pragma unroll 1
        for (; i < part.masked_end; ++i) f(std::true_type(), before + i, block());
#pragma unroll 1
        for (; i < part.end; ++i)
          f(std::false_type(), before + i, kChangesScores || kDropsOut ? block() : 0);
      }
    }

    // True if a lane's query, `column` after its first one, does not see its key, `row` after its
    // first one.
    __device__ __forceinline__ auto hidden(const Problem& problem, int block, int key,
                                           int first_query) const {
      const int left = reach(problem.args.window_left), right = reach(problem.args.window_right);
      const int begin = first_key() - first(), end = end_key() - first();
      // The query's own key, counted from the lane's first one.
      const int own = block * Config::B_r + first_query - ahead() - key;
      if constexpr (kIsWide<Config>) {
        // The keys that a query sees, of the block's that are used, from the lane's first key on.
        struct Seen {
          int first, count;
        };
        const auto seen = [&](int column) {
          const int first = max(own + column - left, begin - key);
          return Seen{first, max(min(own + column + right + 1, end - key) - first, 0)};
        };
        return [low = seen(0), high = seen(8)](int row, int column) {
          const Seen& keys = column == 0 ? low : high;
          return static_cast<unsigned>(row - keys.first) >= static_cast<unsigned>(keys.count);
        };
      } else {
        // How many keys, of those that the first query sees, are after the lane's two keys. No
        // query sees a key that is not used.
        const auto unless_unused = [&](int row) {
          return key + row >= begin && key + row < end ? own + right - row : -kFarthest;
        };
        return [low = unless_unused(0), high = unless_unused(8),
                seen = static_cast<unsigned>(left) + right](int row, int column) {
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
        if constexpr (kChangesScores) {
          const auto& slopes = problem.args.alibi_slopes;
          const int in_group =
              problem.heads_first ? (step - keys.before_) / keys.blocks() : step % problem.group;
          slope_ = slopes.data == nullptr
                       ? 0
                       : *slopes.template at<const float>(
                             keys.word(offsetof(Tile, sequence)),
                             keys.word(offsetof(Tile, kv_head)) * problem.group + in_group) *
                             (kLog2E * problem.from_log2);
          if constexpr (kGivesSlopes) in_group_ = in_group;
          ahead_ = static_cast<float>(keys.ahead() + Lane::first_key() - block * Config::B_r -
                                      Lane::first_query());
        }
      }

      // The factor that makes a score an exponent of two, before the log-sum-exp is subtracted.
      __device__ __forceinline__ float factor() const {
        return kChangesScores ? problem_.to_log2 : problem_.scale_log2;
      }

      __device__ __forceinline__ bool caps() const { return problem_.cap > 0; }
      // Products become scores, of capped ones their tanh; slopes are not taken off yet.
      template <int kCount>
      __device__ __forceinline__ void cap(float (&scores)[kCount]) const {
        unroll<kCount>([&](int e) {
          scores[e] *= problem_.to_score;
          if constexpr (kCapsScores) scores[e] = attention::fast_tanh(scores[e]);
        });
      }
      // Scores from `first` on lose as much as slopes take off.
      template <int kCount>
      __device__ __forceinline__ void slant(float* scores, int first) const {
        if (!kCapsScores || slope_ != 0)
          unroll<kCount>([&](int e) { scores[e] -= slope_ * distance(first + e); });
      }
      template <int kCount>
      __device__ __forceinline__ void apply(float (&scores)[kCount]) const {
        cap(scores);
        slant<kCount>(scores, 0);
      }

      // Gradients of scores from `first` on are taken for the slope's: added to the thread's sum.
      template <int kCount>
      __device__ __forceinline__ void take(const float* gradients, int first) {
        if constexpr (kGivesSlopes)
          unroll<kCount>([&](int e) { of_slope_ += gradients[e] * distance(first + e); });
      }
      // Gradients of scores become those of products times the factor, and are taken before. A
      // capped score follows from its probability, of which 0 has no gradient.
      template <int kCount, class LogSum>
      __device__ __forceinline__ void differentiate(const float (&probabilities)[kCount],
                                                    float (&gradients)[kCount],
                                                    const LogSum& log_sum) {
        take<kCount>(gradients, 0);
        if constexpr (!kCapsScores) return;
        float tanh[kCount];
        unroll<kCount>([&](int e) {
          tanh[e] = (ptx::log2(probabilities[e]) + log_sum(e)) * problem_.from_log2;
        });
        if (slope_ != 0) unroll<kCount>([&](int e) { tanh[e] += slope_ * distance(e); });
        unroll<kCount>([&](int e) { gradients[e] *= fmaxf(1 - tanh[e] * tanh[e], 0); });
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
        return fabsf(ahead_ + static_cast<float>(Lane::key(e) - Lane::query(e)));
      }

      const Problem& problem_;
      float slope_ = 0, of_slope_ = 0, ahead_ = 0;
      int in_group_ = 0;
    };
    __device__ __forceinline__ Change change_of_scores(const Problem& problem, int step,
                                                       int block) const {
      return Change(problem, *this, step, block);
    }

    __device__ __forceinline__ int count() const {
      return word(offsetof(Tile, key_rows)) - first();
    }

   private:
    // A tile's steps in a row: those up to masked_end are masked, the others are not.
    struct Part {
      int masked_end, end;
    };
    // The part that begins with a step. `start` becomes the first step of its pass through the
    // blocks of queries: of a head, or of all of them.
    __device__ __forceinline__ Part part_of(const Problem& problem, int step, int& start) const {
      const int first = word(offsetof(Tile, first_block)), behind = first + blocks();
      int begin = max(ahead() + kCount - 1 - reach(problem.args.window_right),
                      word(offsetof(Tile, first_query))),
          end = min(ahead() + reach(problem.args.window_left) + 1, word(offsetof(Tile, end_query)));
      if (first_key() > this->first() || end_key() < this->first() + kCount) end = -1;
      begin = min(max(ceil_div(max(begin, 0), Config::B_r), first), behind);
      end = end < 0 ? begin : min(max(end / Config::B_r, begin), behind);
      const int each = problem.heads_first ? 1 : problem.group, all = blocks() * each;
      const bool from_first = word(offsetof(Tile, from_first)) & 1;
      const int masked = (from_first ? begin - first : behind - end) * each;
      const int whole = masked + (end - begin) * each;
      if (step == start + all) start = step;
      const bool is_first = step < start + whole;
      return {__shfl_sync(~0u, start + (is_first ? masked : all), 0),
              __shfl_sync(~0u, start + (is_first ? whole : all), 0)};
    }

    __device__ __forceinline__ int word(std::size_t offset) const {
      return static_cast<int>(ptx::load_shared_4(place_ + static_cast<std::uint32_t>(offset)));
    }
    __device__ __forceinline__ int blocks() const { return word(offsetof(Tile, blocks)); }
    __device__ __forceinline__ int first_key() const { return word(offsetof(Tile, first_key)); }
    __device__ __forceinline__ int end_key() const { return word(offsetof(Tile, end_key)); }
    __device__ __forceinline__ int first_of_block() const {
      return word(offsetof(Tile, key_block)) * Config::B_c;
    }
    // The warpgroup's first key; and how far it is ahead of the key of the region's first query.
    __device__ __forceinline__ int first() const { return first_of_block() + warpgroup_ * 64; }
    __device__ __forceinline__ int ahead() const { return first() - word(offsetof(Tile, own)); }

    Place place_;
    int warpgroup_;
    [[maybe_unused]] int before_;  // the steps of the thread block's tiles before
  };

  template <class Element>
  __device__ __forceinline__ static Element* gradient_row(const TensorView<4>& tensor,
                                                          const Tile& tile, int warpgroup,
                                                          int key) {
    const std::int64_t row =
        std::int64_t{tile.key_row_} + tile.key_block * Config::B_c + warpgroup * 64 + key;
    return tensor.template as<Element>() + Base::key_entry(tile) * tensor.stride[0] +
           row * tensor.stride[1] + tile.kv_head * tensor.stride[2];
  }

 private:
  // The index-th tile. Those that sum up slopes' gradients do so by their index.
  __device__ __forceinline__ static Tile tile_of(const Problem& problem, int index) {
    if (kGivesSlopes || problem.next_tile == nullptr) return Base::tile_of(problem, index);
    ptx::wait_for_kernel_ahead();
    return tile_in_order<Config>(problem, index);
  }
  __device__ __forceinline__ static void store_tile(const Tile& tile, std::uint32_t place) {
    unroll<sizeof(Tile) / 16>([&](int i) {
      ptx::store_shared(place + 16 * i, reinterpret_cast<const uint4*>(&tile)[i]);
    });
  }
};

}  // namespace kernelmint::flash_prefill_backward::sm90a
