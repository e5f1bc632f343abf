// The warps that move data, so that the others only compute: one loads, one adds dQ to memory.
#pragma once

#include <cstdint>

#include "attention/sm90a_backward_shared_memory.cuh"
#include "attention/sm90a_tensor_maps.cuh"
#include "ptx/atomic.cuh"
#include "ptx/bulk_copy.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/special_registers.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"

namespace kernelmint::attention_backward::sm90a {

using attention::sm90a::MappedTensor;

// One thread: requests K and V once, then for each step Q with its log-sum-exps and dO with D.
template <class Config, class Sequences>
class Producer {
  using Shared = typename Sequences::Shared;
  using Queries = typename Shared::Queries;
  using Gradients = typename Shared::Gradients;
  using Problem = typename Sequences::Problem;
  using Tile = typename Sequences::Tile;

 public:
  __device__ Producer(const Problem& problem, const Shared& shared)
      : problem_(problem), shared_(shared) {}

  __device__ void run() {
    const Tile tile = Sequences::tile(problem_, shared_);
    if (tile.blocks * problem_.group == 0) return;
    load_keys<kColumnsOfKeyPanel<Config>>(tile, problem_.k, shared_.keys(), shared_.keys_full());
    load_keys<64>(tile, problem_.v, shared_.values(), shared_.values_full());
    ptx::wait_for_kernel_ahead();  // the kernel ahead makes the sums of rows
    load_steps(tile, 0);
  }

  // If a thread block has many tiles, one thread takes them, and loads K and V when the consumers
  // have done with those of the tile before. It takes a tile late, since others may wait for it. An
  // index past the last tile ends all.
  __device__ void take_tiles() const {
    ptx::wait_for_kernel_ahead();
#pragma unroll 1
    for (int n = 0;; ++n) {
      Sequences::take_tile(problem_, tiles(), n);
      ptx::mbarrier_arrive(tiles().taken());
      ptx::mbarrier_wait(tiles().keys_empty(), (n & 1) ^ 1);
      const auto place = Sequences::template place_of<false>(tiles(), n);
      const bool is_past = Sequences::template is_past<false>(problem_, place);
      const Tile tile = is_past ? Tile{} : Sequences::tile_at(problem_, place);
      if (tile.blocks * problem_.group == 0) {
        ptx::mbarrier_arrive(shared_.values_full());
        ptx::mbarrier_arrive(shared_.keys_full());
        if (is_past) return;
      } else {
        load_keys<kColumnsOfKeyPanel<Config>>(tile, problem_.k, shared_.keys(),
                                              shared_.keys_full());
        load_keys<64>(tile, problem_.v, shared_.values(), shared_.values_full());
      }
      ptx::mbarrier_wait(tiles().loaded(), n & 1);
    }
  }

  // Another one loads Q and dO, the first of a tile while the consumers still have the one before.
  __device__ void load_tiles() {
    ptx::wait_for_kernel_ahead();
    int i = 0;
#pragma unroll 1
    for (int n = 0;; ++n) {
      ptx::mbarrier_wait(tiles().taken(), n & 1);
      const auto place = Sequences::template place_of<false>(tiles(), n);
      if (Sequences::template is_past<false>(problem_, place)) return;
      const Tile tile = Sequences::tile_at(problem_, place);
      if constexpr (Sequences::kMakesSums) Sequences::wait_for_sums(problem_, tile);
      i = load_steps(tile, i);
      ptx::mbarrier_arrive(tiles().loaded());
    }
  }

 private:
  // Q and dO of a tile's steps, before which there were `i`; returns how many there are then.
  __device__ __forceinline__ int load_steps(const Tile& tile, int i) {
    const int first_head = tile.kv_head * problem_.group;
    const bool heads_first = Sequences::heads_first(problem_);
    const int outer_steps = heads_first ? problem_.group : tile.blocks;
    const int inner_steps = heads_first ? tile.blocks : problem_.group;
#pragma unroll 1
    for (int outer = 0; outer < outer_steps; ++outer)
#pragma unroll 1
      for (int inner = 0; inner < inner_steps; ++inner, ++i) {
        block_ = Sequences::nth_block(problem_, tile, heads_first ? inner : outer);
        head_ = first_head + (heads_first ? outer : inner);
        load_queries<Queries>(tile, problem_.q, problem_.log_sums, i);
        load_queries<Gradients>(tile, problem_.dout, problem_.deltas, i);
      }
    return i;
  }

  __device__ __forceinline__ ManyTiles tiles() const { return ManyTiles(shared_.tile()); }

  // In panels of `kColumns`.
  template <int kColumns>
  __device__ __forceinline__ void load_keys(const Tile& tile, const MappedTensor& tensor,
                                            std::uint32_t destination, std::uint32_t full) const {
    ptx::mbarrier_arrive_expecting(full, Shared::kKeysBytes);
    for (int panel = 0; panel < Config::padded_head / kColumns; ++panel)
      ptx::tma_load_4d(destination + panel * (Config::B_c * kColumns * 2), tensor.map, full,
                       cache_policy<kConsumersAdd<Config>>(), panel * kColumns,
                       Sequences::key_row(tile), tile.kv_head * tensor.head_step,
                       Sequences::key_entry(tile) * tensor.batch_step);
  }

  template <class Ring>
  __device__ __forceinline__ void load_queries(const Tile& tile, const MappedTensor& tensor,
                                               const float* rows, int i) const {
    const int stage = i % Ring::kBuffers;
    const std::uint32_t full = shared_.template full<Ring>(stage);
    ptx::mbarrier_wait(shared_.template empty<Ring>(stage), (i / Ring::kBuffers & 1) ^ 1);
    ptx::mbarrier_arrive_expecting(full, Shared::kQueriesBytes + Shared::kRowsBytes);
    for (int panel = 0; panel < Config::padded_head / 64; ++panel)
      ptx::tma_load_4d(shared_.template data<Ring>(stage) + panel * Shared::kQueryPanelBytes,
                       tensor.map, full, cache_policy<true>(), panel * 64,
                       Sequences::query_row(tile, block_), head_ * tensor.head_step,
                       Sequences::query_entry(tile) * tensor.batch_step);
    const int index = Sequences::block_index(problem_, tile, head_, block_);
    ptx::bulk_load(shared_.template rows<Ring>(stage), rows + std::int64_t{index} * Config::B_r,
                   Shared::kRowsBytes, full);
  }

  template <bool kKeeps>
  __device__ __forceinline__ static std::uint64_t cache_policy() {
    return ptx::make_cache_policy<kKeeps ? ptx::CachePolicy::kEvictLast
                                         : ptx::CachePolicy::kEvictNormal>();
  }

  const Problem& problem_;
  const Shared shared_;
  int head_, block_;
};

// A block of queries of a step, and its index among all of the call.
struct BlockOfStep {
  int block, index;
};

// The value that a counter must reach before a step adds to dQ, and whether it stores. A step that
// stores, or each one if dQ has to be the same each time, gives it the next value.
struct Turn {
  unsigned* counter;
  unsigned least;
  bool stores;
};

// One warp: takes the warpgroups' parts of dQ, step by step, or of each second step, and adds them
// to memory when it is their turn, or stores them.
template <class Config, class Sequences>
class QueryGradientWriter {
  using Shared = typename Sequences::Shared;
  using Problem = typename Sequences::Problem;
  using Tile = typename Sequences::Tile;

 public:
  __device__ QueryGradientWriter(const Problem& problem, const Shared& shared)
      : problem_(problem), shared_(shared), is_next_(writer() == 0) {}

  __device__ void run() {
    ptx::wait_for_kernel_ahead();
    if constexpr (Sequences::kPersistent) {
#pragma unroll 1
      for (int n = 0;; ++n) {
        ptx::mbarrier_wait(shared_.keys_full(), n & 1);
        const ManyTiles tiles(shared_.tile());
        const auto place = Sequences::template place_of<false>(tiles, n);
        if (Sequences::template is_past<false>(problem_, place)) break;
        __syncwarp();
        if (is_one()) ptx::mbarrier_arrive(tiles.keys_empty());  // not a tile behind the others
        const Tile tile = Sequences::tile_at(problem_, place);
        add(tile, place);
        end(Sequences::tile_in_step(problem_, tile, place));
      }
    } else {
      const Tile tile = Sequences::tile(problem_, shared_);
      add(tile, shared_.tile());
      end(Sequences::tile_in_step(problem_, tile, shared_.tile()));
    }
  }

 private:
  // Waits until all of the tile's parts are in memory, and says so.
  __device__ __forceinline__ void end(const Tile& tile) const {
    if (!is_one()) return;
    ptx::bulk_wait_group<0>();
    if constexpr (Sequences::kSaysWhenDone) {
      ptx::fence_async_global();
      Sequences::say_done(problem_, tile);
    }
  }

  template <class Place>
  __device__ __forceinline__ void add(const Tile& first_tile, Place place) {
    const int steps = first_tile.blocks * problem_.group;
    int step = kWriters<Config> == 1 || is_next_ ? 0 : 1;
    if (steps > 0 && (kWriters<Config> == 1 || step == 1)) free_parts();
    seen_ = 0;
#pragma unroll 1
    for (; step < steps; step += kWriters<Config>) {
      const Tile tile = Sequences::tile_in_step(problem_, first_tile, place);
      const auto [block, index] = Sequences::block_of_step(problem_, tile, step);
      to_ = problem_.dq + std::int64_t{index} * (Config::B_r * Config::padded_head);
      turn_ = Sequences::turn(problem_, tile, index, block, step);
      if (!Sequences::one_counter(problem_)) seen_ = 0;
      for (int part = 0; part < 2; ++part) {
        ptx::named_barrier_sync(kPartFull + writer() * 2 + part, 160);
        if (is_one()) write(part);
        __syncwarp();
      }
      if (step + 1 < steps) free_parts();
      if ((Config::deterministic || turn_.stores) && is_one()) {
        ptx::bulk_wait_group<0>();
        ptx::fence_async_global();
        // Until the step before, which is the other warp's, is in memory as well.
        if (kWriters<Config> == 2 && Sequences::one_counter(problem_))
          ptx::wait_alone_for_counter(turn_.counter, turn_.least);
        ptx::store_release(turn_.counter, turn_.least + 1);
      }
      __syncwarp();
    }
    is_next_ = step == steps;
  }

  // The warp's place among those that add dQ, the second and the fourth of the thread block.
  __device__ __forceinline__ static unsigned writer() {
    return kWriters<Config> == 1 ? 0 : ptx::reread_thread_index() / 64;
  }

  __device__ __forceinline__ static bool is_one() { return ptx::reread_thread_index() % 32 == 0; }

  __device__ __forceinline__ void write(int part) {
    float* const to = to_ + part * (Shared::kPartBytes / 4);
    const std::uint32_t from = shared_.query_gradients(part);
    const int bytes = part == 0 ? Shared::kPartBytes : Shared::kLastPartBytes;
    if (turn_.stores) {
      ptx::bulk_store(to, from, bytes, ptx::kEvictLastPolicy);
    } else {
      if (Config::deterministic ? part == 0 && turn_.least > 0 : seen_ < turn_.least) {
        while ((seen_ = ptx::load_acquire(turn_.counter)) < turn_.least) {
        }
        ptx::fence_async_global();
      }
      ptx::bulk_add(to, from, bytes, ptx::kEvictLastPolicy);
    }
    ptx::bulk_commit_group();
  }

  // Each warpgroup may write its part again as soon as the one before has been read.
  __device__ __forceinline__ void free_parts() const {
    if (is_one()) ptx::bulk_wait_group_read<1>();
    __syncwarp();
    ptx::named_barrier_arrive(kPartEmpty, 160);
    if (is_one()) ptx::bulk_wait_group_read<0>();
    __syncwarp();
    ptx::named_barrier_arrive(kPartEmpty + 1, 160);
  }

  const Problem& problem_;
  const Shared shared_;
  float* to_;
  Turn turn_;
  unsigned seen_;  // the counter's last value
  bool is_next_;   // the next step, of all tiles, is this warp's
};

// One warp, where the warpgroups add dQ to memory themselves: tells them when it is a step's turn,
// and the blocks of keys after theirs when the step is in memory, which they need not wait for.
template <class Config, class Sequences>
class TurnKeeper {
  using Shared = typename Sequences::Shared;
  using Problem = typename Sequences::Problem;
  using Tile = typename Sequences::Tile;

 public:
  __device__ TurnKeeper(const Problem& problem, const Shared& shared)
      : problem_(problem), shared_(shared) {}

  __device__ void run() const {
    ptx::wait_for_kernel_ahead();
    const Tile first_tile = Sequences::tile(problem_, shared_);
    const int steps = first_tile.blocks * problem_.group;
    const bool is_one = ptx::reread_thread_index() % 32 == 0;
    unsigned seen = 0;  // the counter's last value
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      const Tile tile = Sequences::tile_in_step(problem_, first_tile, shared_.tile());
      const auto [block, index] = Sequences::block_of_step(problem_, tile, step);
      const Turn turn = Sequences::turn(problem_, tile, index, block, step);
      if (!Sequences::one_counter(problem_)) seen = 0;
      if (is_one) {
        while (seen < turn.least) seen = ptx::load_acquire(turn.counter);
        ptx::store_shared(shared_.turn(), static_cast<std::uint32_t>(turn.stores ? ~index : index));
      }
      __syncwarp();
      for (int warpgroup = 0; warpgroup < Config::n_warpgroups; ++warpgroup)
        ptx::named_barrier_arrive(kTurnCome + warpgroup, 160);
      ptx::named_barrier_sync(kPartFull, 128 * Config::n_warpgroups + 32);
      if ((Config::deterministic || turn.stores) && is_one)
        ptx::store_release(turn.counter, turn.least + 1);
      __syncwarp();
    }
  }

 private:
  const Problem& problem_;
  const Shared shared_;
};

}  // namespace kernelmint::attention_backward::sm90a
