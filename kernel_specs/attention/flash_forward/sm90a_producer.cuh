// The producer: a thread that moves tiles from global to shared memory, so that the consumers only
// compute.
#pragma once

#include <cstdint>

#include "attention/flash_forward/sm90a_announced.cuh"
#include "attention/flash_forward/sm90a_problem.h"
#include "attention/flash_forward/sm90a_tile_scheduler.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"

namespace kernelmint::flash_forward::sm90a {

// One thread: takes tiles from the scheduler, announces them to the consumers and requests their
// operands.
template <class Config>
class Producer {
  using Shared = SharedMemory<Config>;
  using ProblemOfArgs = Problem<typename Config::Args>;

  // The coordinates of a box of keys or of values.
  struct Box {
    int row, head, batch;
  };

 public:
  __device__ Producer(const ProblemOfArgs& problem, const Shared& shared)
      : problem_(problem), shared_(shared) {}

  __device__ void run() {
    const TileOrder<Config> order(problem_);
    TileScheduler scheduler;
    while (scheduler.next() < order.whole_tiles())
      load(order[scheduler.next()], order, [&] { scheduler.ask(problem_.counter); });
    end<Tile>();
    scheduler.finish(problem_.counter);
    if (problem_.split.tiles == 0) return;
    for (int i = 0; i < 2; ++i) {
      const TilePart part = order.part(i);
      if (part.key_blocks > 0) load(part, order, [] {});
    }
    end<TilePart>();
  }

 private:
  // Announces a tile and requests its operands, but for its last values. Calls `at_last_block` when
  // it is there.
  template <class AnyTile, class F>
  __device__ __forceinline__ void load(const AnyTile& tile, const TileOrder<Config>& order,
                                       const F& at_last_block) {
    // If tiles do not overlap, the last product of one precedes the next one's scores.
    if (!Config::overlaps_tiles) request_last_values();
    announce(tile);
    const int last_row = tile.first_key_block * Config::B_c;
    Box keys{(tile.key_blocks - 1) * Config::B_c, order.kv_head(tile), tile.batch};
    for (; keys.row >= last_row; keys.row -= Config::B_c) {
      if (keys.row == last_row) at_last_block();
      request_keys(keys);
      request_last_values();
      last_values_ = keys;
    }
  }

  // Announces that there are no more.
  template <class AnyTile>
  __device__ __forceinline__ void end() {
    if (!Config::overlaps_tiles) request_last_values();
    announce(AnyTile{});
    request_last_values();
  }

  __device__ __forceinline__ void request_last_values() {
    if (last_values_.row < 0) return;
    request_values(last_values_);
    last_values_.row = -1;
  }

  template <class AnyTile>
  __device__ __forceinline__ void announce(const AnyTile& tile) {
    store_tile(shared_.tile(slot_.buffer()), tile);
    slot_.advance();
    for (int warpgroup = 0; warpgroup < Config::n_warpgroups; ++warpgroup) {
      const std::uint32_t full =
          shared_.template full<typename Shared::Queries>(queries_.buffer(), warpgroup);
      queries_.wait_empty(shared_, warpgroup);
      if (tile.key_blocks > 0)
        request_queries(tile, warpgroup, full);
      else
        ptx::mbarrier_arrive(full);
    }
    queries_.advance();
  }

  __device__ __forceinline__ void request_queries(const Tile& tile, int warpgroup,
                                                  std::uint32_t full) const {
    const PackedRows& rows = problem_.rows;
    const MappedTensor& q = problem_.q;
    const std::uint32_t slab = shared_.queries(queries_.buffer(), warpgroup);
    const std::uint64_t policy = cache_policy();
    ptx::mbarrier_arrive_expecting(full, rows.used() * Shared::kRowBytes);
    for (int panel = 0; panel < Shared::kPanels; ++panel)
      ptx::tma_load_5d(slab + panel * kSlabRows * kPanelRowBytes, q.map, full, policy, panel * 64,
                       0, tile.first_query + warpgroup * rows.queries, tile.head * q.head_step,
                       tile.batch * q.batch_step);
  }

  __device__ __forceinline__ void request_keys(const Box& box) {
    keys_.wait_empty(shared_);
    request(problem_.k, shared_.keys(keys_.buffer()),
            shared_.template full<typename Shared::Keys>(keys_.buffer()), box);
    keys_.advance();
  }

  __device__ __forceinline__ void request_values(const Box& box) {
    values_.wait_empty(shared_);
    request(problem_.v, shared_.values(values_.buffer()),
            shared_.template full<typename Shared::Values>(values_.buffer()), box);
    values_.advance();
  }

  __device__ __forceinline__ void request(const MappedTensor& tensor, std::uint32_t destination,
                                          std::uint32_t full, const Box& box) const {
    const std::uint64_t policy = cache_policy();
    ptx::mbarrier_arrive_expecting(full, Shared::kBlockBytes);
    for (int panel = 0; panel < Shared::kPanels; ++panel)
      ptx::tma_load_4d(destination + panel * Config::B_c * kPanelRowBytes, tensor.map, full, policy,
                       panel * 64, box.row, box.head * tensor.head_step,
                       box.batch * tensor.batch_step);
  }

  // Made anew each time: this thread has few registers.
  __device__ __forceinline__ static std::uint64_t cache_policy() {
    return ptx::make_cache_policy<ptx::CachePolicy::kEvictLast>();
  }

  const ProblemOfArgs& problem_;
  const Shared shared_;
  Box last_values_{-1, 0, 0};  // still to be requested: scores are made a block ahead of the output
  RingPosition<typename Shared::Tiles> slot_;
  RingPosition<typename Shared::Queries> queries_;
  RingPosition<typename Shared::Keys> keys_;
  RingPosition<typename Shared::Values> values_;
};

}  // namespace kernelmint::flash_forward::sm90a
