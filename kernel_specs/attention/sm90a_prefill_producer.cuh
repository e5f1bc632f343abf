// The producer: a warp that finds tiles and moves them from global to shared memory.
#pragma once

#include <cstdint>

#include "attention/sm90a_prefill_tile.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"

namespace kernelmint::flash_prefill::sm90a {

template <class Config>
class Producer {
  using Args = typename Config::Args;
  using Shared = SharedMemory<Config>;

  // A block of keys of a tile.
  struct Block {
    int index;  // -1: none
    std::uint32_t slot;
  };

 public:
  __device__ Producer(const Problem<Args>& problem, const Shared& shared)
      : problem_(problem),
        args_(problem.args),
        shared_(shared),
        own_(Tile<Config>::longest_first(problem.args)) {}

  __device__ void run() {
    TileScheduler scheduler;
    announce(scheduler);
    while (is_there_) load(scheduler);
    if (!Config::overlaps_tiles) request_last_values();
    request_queries(shared_.tile(slot_.buffer()));
    request_last_values();
    if (is_leader()) scheduler.finish(problem_.counter);
  }

 private:
  __device__ static bool is_leader() { return threadIdx.x == 0; }

  // Announces the scheduler's next tile, or that there are no more.
  __device__ __forceinline__ void announce(const TileScheduler& scheduler) {
    Announced tile;
    is_there_ = find(__shfl_sync(~0u, scheduler.next(), 0), tile);
    if (!is_there_) tile = {};
    if (is_leader()) store_tile(shared_.tile(slot_.buffer()), tile);
    __syncwarp();
  }

  // The tile `index` of all, each head's by itself.
  __device__ __forceinline__ bool find(int index, Announced& found) const {
    const int all_heads = static_cast<int>(args_.H);
    Tile<Config> tile;
    if (!tile.template find<true>(args_, index, all_heads, own_)) return false;
    // Heads whose keys and values the L2 cache holds take turns. Under a causal mask the last
    // queries see most keys: they begin first.
    constexpr int kCacheBytes = 32 << 20, kKeyBytes = 2 * 2 * Config::d_head;
    const int group = all_heads / static_cast<int>(args_.Hk);
    const int cached = max(kCacheBytes / kKeyBytes / max(tile.end, 1), 1);
    const int section = cached > all_heads / group ? all_heads : cached * group;
    const int first_head = tile.index / (tile.tiles * section) * section;
    const int within = tile.index - first_head * tile.tiles;
    const int heads = min(section, all_heads - first_head);
    found.head = first_head + within % heads;
    found.kv_head = found.head / group;
    found.first_query = (tile.tiles - 1 - within / heads) * Config::B_r;
    found.sequence = tile.sequence;
    found.entry = tile.entry;
    found.first_row = tile.first_row;
    found.rows = tile.rows;
    found.queries = tile.queries;
    found.begin = tile.begin;
    found.end = tile.end;
    found.key_entry = tile.key_entry;
    found.first_key = tile.first_key;
    // Without a key to see, one block is walked all the same.
    found.first_key_block = 0;
    found.key_blocks = 1;
    if (found.first_query < found.queries) {
      const Seen seen(args_, found);
      const int first = seen.first(found.first_query);
      const int behind = seen.behind(min(found.first_query + Config::B_r, found.queries) - 1);
      if (first < behind) {
        found.first_key_block = first / Config::B_c;
        found.key_blocks = ceil_div(behind, Config::B_c);
      }
    }
    return true;
  }

  // Requests the announced tile's operands, but for its last values. The next tile is found while
  // the last blocks wait for empty buffers: the answers of the scheduler, and of memory, take a
  // while.
  __device__ __forceinline__ void load(TileScheduler& scheduler) {
    // If tiles do not overlap, the last product of one precedes the next one's scores.
    if (!Config::overlaps_tiles) request_last_values();
    Block keys{0, shared_.tile(slot_.buffer())};
    request_queries(keys.slot);
    slot_.advance();
    int first, last;
    {
      const Announced tile = load_tile<0, 1>(keys.slot);
      first = tile.first_key_block;
      last = tile.key_blocks - 1;
    }
    for (keys.index = last; keys.index >= first; --keys.index) {
      request<typename Shared::Keys>(problem_.k, keys_, shared_.keys(keys_.buffer()), keys);
      request_last_values();
      last_values_ = keys;
      if (keys.index == min(first + 2, last) && is_leader()) scheduler.ask(problem_.counter);
      if (keys.index == min(first + 1, last)) announce(scheduler);
    }
  }

  __device__ __forceinline__ void request_last_values() {
    if (last_values_.index < 0) return;
    request<typename Shared::Values>(problem_.v, values_, shared_.values(values_.buffer()),
                                     last_values_);
    last_values_.index = -1;
  }

  __device__ __forceinline__ void request_queries(std::uint32_t slot) {
    for (int warpgroup = 0; warpgroup < Config::n_warpgroups; ++warpgroup) {
      const std::uint32_t full =
          shared_.template full<typename Shared::Queries>(queries_.buffer(), warpgroup);
      queries_.wait_empty(shared_, warpgroup);
      if (!is_leader()) continue;
      const Announced tile = load_tile<0, 2>(slot);
      if (tile.key_blocks == 0) {
        ptx::mbarrier_arrive(full);
        continue;
      }
      const std::uint32_t slab = shared_.queries(queries_.buffer(), warpgroup);
      ptx::mbarrier_arrive_expecting(full, Shared::kSlabBytes);
      for (int panel = 0; panel < Shared::kPanels; ++panel)
        ptx::tma_load_4d(slab + panel * kSlabRows * kPanelRowBytes, problem_.q.map, full,
                         cache_policy(), panel * 64,
                         tile.first_row + tile.first_query + warpgroup * kSlabRows,
                         tile.head * problem_.q.head_step, tile.entry * problem_.q.batch_step);
    }
    queries_.advance();
    __syncwarp();
  }

  // Requests a block; each lane requests the block's part of one page.
  template <class Ring>
  __device__ __forceinline__ void request(const MappedTensor& tensor, RingPosition<Ring>& ring,
                                          std::uint32_t destination, const Block& block) {
    const std::uint32_t full = shared_.template full<Ring>(ring.buffer());
    ring.wait_empty(shared_);
    if (is_leader()) ptx::mbarrier_arrive_expecting(full, Shared::kBlockBytes);
    __syncwarp();
    ring.advance();
    const int first = threadIdx.x * problem_.box_rows;  // the thread's first row of the block
    if (first >= Config::B_c) return;
    const Announced tile = load_tile<0, 4>(block.slot);
    int row = block.index * Config::B_c + first, entry = tile.key_entry;
    if (args_.block_table.data != nullptr) {
      const int size = static_cast<int>(args_.Tk), page = static_cast<unsigned>(row) / size;
      // Keys that are not there are masked: any page will do.
      entry = row < tile.end ? *args_.block_table.template at<const i32>(tile.sequence, page) : 0;
      row -= page * size;
    } else {
      row += tile.first_key;
    }
    for (int panel = 0; panel < Shared::kPanels; ++panel)
      ptx::tma_load_4d(destination + panel * Config::B_c * kPanelRowBytes + first * kPanelRowBytes,
                       tensor.map, full, cache_policy(), panel * 64, row,
                       tile.kv_head * tensor.head_step, entry * tensor.batch_step);
  }

  // Made anew each time: this warp has few registers.
  __device__ __forceinline__ static std::uint64_t cache_policy() {
    return ptx::make_cache_policy<ptx::CachePolicy::kEvictLast>();
  }

  const Problem<Args>& problem_;
  const Args& args_;
  const Shared shared_;
  const int own_;             // the one of the first sequences that this lane looks at
  Block last_values_{-1, 0};  // still to be requested: scores are made a block ahead
  bool is_there_;             // true if a tile is announced
  RingPosition<typename Shared::Tiles> slot_;  // the announced tile's slot
  RingPosition<typename Shared::Queries> queries_;
  RingPosition<typename Shared::Keys> keys_;
  RingPosition<typename Shared::Values> values_;
};

}  // namespace kernelmint::flash_prefill::sm90a
