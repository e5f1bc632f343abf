// Sequences of equal lengths: which blocks of queries a block of keys meets, and where both lie.
#pragma once

#include <cstdint>
#include <type_traits>

#include "attention/flash_backward/prepare.cuh"
#include "attention/flash_backward/problem.h"
#include "attention/flash_backward/sm90a_problem.h"
#include "attention/flash_backward/sm90a_trace.cuh"
#include "attention/sm90a_backward_producer.cuh"
#include "attention/sm90a_backward_shared_memory.cuh"
#include "attention/sm90a_backward_sum_maker.cuh"
#include "attention/sm90a_backward_wide_shared_memory.cuh"
#include "integers.h"
#include "ptx/atomic.cuh"
#include "ptx/special_registers.cuh"
#include "tensor_view.h"

namespace kernelmint::flash_backward::sm90a {

// The main kernel's view of a call. The warps ask their `Sequences` for everything that depends on
// lengths, masks and changes of scores; flash_prefill_backward has another class of this kind.
template <class Config>
struct EqualSequences {
  static constexpr bool kPersistent = Config::persistent;  // a thread block has many tiles
  static constexpr bool kMakesSums = kLeavesSums<Config>;
  static constexpr int kTileBytes =
      (kPersistent ? ManyTiles::kBytes : 0) + (kMakesSums ? kSumMakerBytes : 0);
  using Problem = sm90a::Problem<typename Config::Args>;
  using Tile = flash_backward::Tile;
  using Trace = sm90a::Trace<Config>;
  using Shared = std::conditional_t<kIsWide<Config>, WideSharedMemory<Config, kTileBytes>,
                                    SharedMemory<Config, kTileBytes>>;

  static constexpr bool kChangesScores = false;  // scores are products times a factor
  static constexpr bool kCapsScores = false;
  static constexpr bool kDropsOut = false;
  static constexpr bool kCleans = false;  // rows beside a sequence may be multiplied

  // The index-th part of the rows whose values the main kernel makes: head after head.
  class alignas(16) Rows {
   public:
    __device__ __forceinline__ Rows(const Problem& problem, int index)
        : row_(index % parts(problem) * kRowsOfPart) {
      const int heads = static_cast<int>(problem.args.H);
      const int of_call = problem.kv_heads_ahead * problem.group + index / parts(problem);
      head_ = of_call % heads, batch_ = of_call / heads;
    }

    __device__ __forceinline__ bool exist(const Problem& problem) const {
      return batch_ < static_cast<int>(problem.args.B);
    }
    __device__ __forceinline__ int row() const { return row_; }
    __device__ __forceinline__ int head() const { return head_; }
    __device__ __forceinline__ int entry() const { return batch_; }
    // Keeps D and the log-sum-exp of a row of the part.
    __device__ __forceinline__ void keep(const Problem& problem, int row, float sum) const {
      const int query = row_ + row, padded = problem.query_blocks * Config::B_r;
      if (query >= padded) return;
      const float log_sum = log_sum_of_row<Config>(problem, batch_, head_, query, sum);
      const std::int64_t at =
          (std::int64_t{batch_} * static_cast<int>(problem.args.H) + head_) * padded + query;
      problem.deltas[at] = sum;
      problem.log_sums[at] = log_sum;
    }
    __device__ __forceinline__ void say_done(const Problem& problem) const {
      const int kv_head = batch_ * static_cast<int>(problem.args.Hk) + head_ / problem.group;
      ptx::add_release(flash_backward::next_sums(problem) + 1 + kv_head, 1);
    }
    __device__ __forceinline__ static int parts(const Problem& problem) {
      return ceil_div(problem.query_blocks * Config::B_r, kRowsOfPart);
    }

   private:
    int row_, head_, batch_;
  };
  __device__ __forceinline__ static bool leaves_sums(const Problem& problem) {
    return problem.kv_heads_ahead < static_cast<int>(problem.args.B * problem.args.Hk);
  }
  __device__ __forceinline__ static unsigned* next_sums(const Problem& problem) {
    return flash_backward::next_sums(problem);
  }
  // Until D of all rows of a tile's queries is there; by the thread that copies them.
  __device__ __forceinline__ static void wait_for_sums(const Problem& problem, const Tile& tile) {
    const int kv_head = tile.batch * static_cast<int>(problem.args.Hk) + tile.kv_head;
    if (kv_head < problem.kv_heads_ahead) return;
    ptx::wait_alone_for_counter(next_sums(problem) + 1 + kv_head,
                                problem.group * Rows::parts(problem));
    ptx::fence_async_global();
  }
  // Where its shared memory begins.
  __device__ __forceinline__ static std::uint32_t sum_boxes(const Shared& shared) {
    return shared.tile() + ManyTiles::kBytes;
  }

  // The tile of the thread block. find_tile is called once before, by a whole warp.
  __device__ static void find_tile(const Problem&, const Shared&) {}
  __device__ __forceinline__ static Tile tile(const Problem& problem, const Shared&) {
    return tile_of<Config>(problem, blockIdx.x);
  }
  __device__ __forceinline__ static Tile tile_again(const Problem& problem, const Shared&) {
    return tile_of<Config>(problem, ptx::reread_block_index());
  }

  // Takes the thread block's n-th tile: its index, which is not less than `tiles` if there are no
  // more. A tile waits for tiles of lower indices, which some thread block has taken before.
  __device__ static void take_tile(const Problem& problem, const ManyTiles& tiles, int n) {
    int index = n == 0 ? static_cast<int>(blockIdx.x) : problem.tiles;
    if (problem.next_tile != nullptr) index = static_cast<int>(atomicAdd(problem.next_tile, 1u));
    ptx::store_shared(tiles.index(n), static_cast<std::uint32_t>(index));
  }
  // By its index a tile is found again.
  using Place = int;
  template <bool kWholeWarp>
  __device__ __forceinline__ static Place place_of(const ManyTiles& tiles, int n) {
    return kWholeWarp ? tiles.index_of_warp(n)
                      : static_cast<int>(ptx::load_shared_4(tiles.index(n)));
  }
  template <bool kWholeWarp>
  __device__ __forceinline__ static bool is_past(const Problem& problem, Place index) {
    return index >= problem.tiles;
  }
  template <bool kWholeWarp = false>
  __device__ __forceinline__ static Tile tile_at(const Problem& problem, Place index) {
    return tile_of<Config>(problem, index);
  }

  // The tile again, in each step of the warp that adds dQ.
  __device__ __forceinline__ static const Tile& tile_in_step(const Problem&, const Tile& tile,
                                                             int) {
    return tile;
  }

  // Whoever adds a tile's dQ says when it is in memory: the last kernel waits for no other heads.
  // Without queries there is no such kernel.
  static constexpr bool kSaysWhenDone = true;
  __device__ __forceinline__ static void say_done(const Problem& problem, const Tile& tile) {
    if (problem.tiles_done == nullptr) return;
    const int kv_heads = static_cast<int>(problem.args.Hk);
    ptx::add_release(problem.tiles_done + tile.batch * kv_heads + tile.kv_head, 1);
  }

  __device__ __forceinline__ static float scale(const Problem& problem) {
    return problem.args.scale;
  }
  __device__ __forceinline__ static int columns(const Problem&) { return Config::d_head; }
  __device__ __forceinline__ static int value_columns(const Problem&) { return Config::d_head; }

  // Where the rows of a block of queries, and the tile's keys, lie in their tensors.
  __device__ __forceinline__ static int query_row(const Tile&, int block) {
    return block * Config::B_r;
  }
  __device__ __forceinline__ static int query_entry(const Tile& tile) { return tile.batch; }
  __device__ __forceinline__ static int key_row(const Tile& tile) {
    return tile.key_block * Config::B_c;
  }
  __device__ __forceinline__ static int key_entry(const Tile& tile) { return tile.batch; }

  // The tile's n-th block of queries, and a block's index among all of the call.
  __device__ __forceinline__ static int nth_block(const Problem& problem, const Tile& tile, int n) {
    return flash_backward::nth_block<Config>(problem, tile, n);
  }
  __device__ __forceinline__ static int block_index(const Problem& problem, const Tile& tile,
                                                    int head, int block) {
    return flash_backward::block_index(problem, tile.batch, head, block);
  }
  // All heads of a group have a block of queries before the next one's turn.
  __device__ __forceinline__ static bool heads_first(const Problem&) { return false; }
  // A step's block of queries.
  __device__ __forceinline__ static BlockOfStep block_of_step(const Problem& problem,
                                                              const Tile& tile, int step) {
    const int block = nth_block(problem, tile, step / problem.group);
    const int head = tile.kv_head * problem.group + step % problem.group;
    return {block, block_index(problem, tile, head, block)};
  }
  __device__ __forceinline__ static unsigned blocks_before(const Problem& problem, const Tile& tile,
                                                           int block) {
    return flash_backward::blocks_before<Config>(problem, tile, block);
  }
  // True if a head's counter is the same for all blocks of queries.
  __device__ __forceinline__ static bool one_counter(const Problem&) {
    return !Config::deterministic;
  }
  // A step's turn. But for the last queries, whose dQ is zero before, the first block of keys
  // stores, from the last queries on, and counts the steps that do; the others add theirs after it.
  __device__ __forceinline__ static Turn turn(const Problem& problem, const Tile& tile, int index,
                                              int block, int step) {
    if constexpr (Config::deterministic) {
      const unsigned before = blocks_before(problem, tile, block);
      return {problem.counters + index, before, before == 0};
    } else {
      const int kv_heads = static_cast<int>(problem.args.Hk);
      unsigned* const counter = problem.counters + tile.batch * kv_heads + tile.kv_head;
      const bool is_first = tile.key_block == 0;
      const int before = problem.query_blocks - 1 - block;  // blocks that the first one has before
      const unsigned stored = (before - 1) * problem.group + step % problem.group;
      return {counter, before == 0 ? 0 : stored + !is_first, is_first && before > 0};
    }
  }

  __device__ __forceinline__ static Trace trace(const Problem& problem, int step, int warpgroup) {
    return Trace(problem, step, warpgroup);
  }

  // The keys of a warpgroup, 64, or of all if the head is wide, and the queries that see them.
  class Keys {
    static constexpr int kCount = kIsWide<Config> ? Config::B_c : 64;

   public:
    __device__ __forceinline__ void find(const Problem& problem, const Tile& tile, std::uint32_t,
                                         int warpgroup) {
      const int first_key = tile.key_block * Config::B_c + warpgroup * 64;
      keys_ = static_cast<int>(problem.args.Sk) - first_key;
      if constexpr (!kIsWide<Config>) warpgroup_ = warpgroup;
      first_key_ = first_key - problem.offset - tile.first_block * Config::B_r;
    }

    // f(is masked, step, block) for each step, from `begin` on, which is a multiple of the group.
    // Only a masked step's block is right: it counts from the tile's first one.
    template <class F>
    __device__ __forceinline__ void for_each_step(const Problem& problem, const Tile& tile,
                                                  int steps, const F& f, int begin = 0) const {
      // The blocks of queries that do not see all of the keys: the tile's first ones. Warpgroups
      // with keys of their own have those of the last one: both hide scores in the same steps.
      const int before = !kIsWide<Config> ? warpgroup_ * 64 - (Config::B_c - kCount) : 0;
      const int last_key = first_key_ + kCount - 1 - before;
      const int masked = Config::causal ? min(ceil_div(max(last_key, 0), Config::B_r), tile.blocks)
                         : keys_ + before < kCount ? tile.blocks
                                                   : 0;
      const int masked_steps = masked * problem.group;
      const int end = begin + steps, before_begin = begin / problem.group;
      if constexpr (kThereAndBack<Config>) {
        int stop = tile.from_diagonal ? begin : end - masked_steps;
        const int masked_stop = tile.from_diagonal ? begin + masked_steps : end;
        const int sign = tile.from_diagonal ? 1 : -1;
        const int from = tile.from_diagonal ? -before_begin : before_begin + tile.blocks - 1;
        for (int i = begin; i < end; stop = end) {
#pragma unroll 1
          for (; i < stop; ++i) f(std::false_type(), i, 0);
#pragma unroll 1
          for (; i < masked_stop; ++i) f(std::true_type(), i, from + sign * (i / problem.group));
        }
        return;
      }
      const int first = end - masked_steps;
      // Once; but ptxas spills if it is not a loop.
      for (int i = begin; i < end;) {
#pragma unroll 1
        for (; i < first; ++i) f(std::false_type(), i, 0);
#pragma unroll 1
        for (; i < end; ++i)
          f(std::true_type(), i, before_begin + tile.blocks - 1 - i / problem.group);
      }
    }

    // True if a lane's query, `column` after its first one, does not see its key, `row` after its
    // first one: a key past the last, or, under the causal mask, after the query.
    __device__ __forceinline__ auto hidden(const Problem&, int block, int key,
                                           int first_query) const {
      const int ahead = first_key_ + key - block * Config::B_r - first_query;
      return [ahead, key, keys = keys_](int row, int column) {
        return Config::causal ? ahead + row > column : key + row >= keys;
      };
    }

    // Scores are products times a factor.
    __device__ __forceinline__ static auto change_of_scores(const Problem& problem, int, int) {
      struct Change {
        const Problem& problem;
        __device__ __forceinline__ float factor() const { return problem.scale_log2; }
      };
      return Change{problem};
    }

    // How many of the keys there are, and perhaps more; none if negative.
    __device__ __forceinline__ int count() const { return keys_; }

   private:
    int warpgroup_;
    int keys_;
    int first_key_;  // counted from the first query of the tile that sees as many, under the mask
  };

  // The row of a warpgroup's key in dK or dV.
  template <class Element>
  __device__ __forceinline__ static Element* gradient_row(const TensorView<4>& tensor,
                                                          const Tile& tile, int warpgroup,
                                                          int key) {
    const std::int64_t row = std::int64_t{tile.key_block} * Config::B_c + warpgroup * 64 + key;
    return tensor.template as<Element>() + tile.batch * tensor.stride[0] + row * tensor.stride[1] +
           tile.kv_head * tensor.stride[2];
  }
};

}  // namespace kernelmint::flash_backward::sm90a
