// The threads that move tiles between global and shared memory, so that the others only compute.
#pragma once

#include <cstdint>

#include "flash_forward/sm90a_problem.h"
#include "flash_forward/sm90a_shared_memory.cuh"
#include "flash_forward/sm90a_tiles.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"

namespace kernelmint::flash_forward::sm90a {

// One thread: takes tiles, announces them and requests what they need.
template <class Config>
class Producer {
  using Shared = SharedMemory<Config>;
  using ProblemOfArgs = Problem<typename Config::Args>;

  // Where a box of keys or of values lies.
  struct Box {
    int row, head, batch;
  };

 public:
  __device__ Producer(const ProblemOfArgs& problem, const Shared& shared)
      : problem_(problem), shared_(shared) {}

  __device__ void run() {
    const TileOrder<Config> order(problem_);
    TileQueue queue;
    int part = 0;
    Box values{-1, 0, 0};  // still to be requested: scores are made a block ahead of the output
    while (true) {
      // Where tiles do not overlap, the last product of one precedes the next one's scores.
      if (!Config::overlaps_tiles && values.row >= 0) {
        request_values(values);
        values.row = -1;
      }
      const int index = queue.next();
      Tile tile{0, 0, 0, 0};
      if (index < order.whole_tiles())
        tile = order[index];
      else if (part < 2)
        tile = order.part(part++);
      announce(tile);
      if (tile.key_blocks == 0) break;
      Box keys{(tile.key_blocks - 1) * Config::B_c, order.kv_head(tile), tile.batch};
      const int last_row = tile.first_key_block * Config::B_c;
      for (; keys.row >= last_row; keys.row -= Config::B_c) {
        if (keys.row == last_row) queue.ask(problem_.counter);
        request_keys(keys);
        if (values.row >= 0) request_values(values);
        values = keys;
      }
    }
    if (values.row >= 0) request_values(values);
    queue.finish(problem_.counter);
  }

 private:
  __device__ __forceinline__ void announce(const Tile& tile) {
    shared_.store_tile(slot_.buffer(), tile);
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
      ptx::tma_load_5d(slab + panel * Shared::kSlabRows * Shared::kPanelRowBytes, q.map, full,
                       policy, panel * 64, 0, tile.first_query + warpgroup * rows.queries,
                       tile.head * q.head_step, tile.batch * q.batch_step);
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
      ptx::tma_load_4d(destination + panel * Config::B_c * Shared::kPanelRowBytes, tensor.map, full,
                       policy, panel * 64, box.row, box.head * tensor.head_step,
                       box.batch * tensor.batch_step);
  }

  // Made anew each time: this thread has few registers.
  __device__ __forceinline__ static std::uint64_t cache_policy() {
    return ptx::make_cache_policy<ptx::CachePolicy::kEvictLast>();
  }

  const ProblemOfArgs& problem_;
  const Shared shared_;
  RingPosition<typename Shared::Tiles> slot_;
  RingPosition<typename Shared::Queries> queries_;
  RingPosition<typename Shared::Keys> keys_;
  RingPosition<typename Shared::Values> values_;
};

}  // namespace kernelmint::flash_forward::sm90a
