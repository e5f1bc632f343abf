// The producer: a warp that finds tiles and moves them from global to shared memory.
#pragma once

#include <cstdint>

#include "flash_prefill/sm90a_tile.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"

namespace kernelmint::flash_prefill::sm90a {

template <class Config>
class Producer {
  using Args = typename Config::Args;
  using Shared = SharedMemory<Config>;

  // A block of keys of a sequence.
  struct Block {
    int index;  // -1: none
    int head, sequence, entry, first_key, end;
  };

 public:
  __device__ Producer(const Problem<Args>& problem, const Shared& shared)
      : problem_(problem), args_(problem.args), shared_(shared) {}

  __device__ void run() {
    TileCounter* const counter = problem_.counter;
    TileScheduler scheduler;
    Announced tile;
    int next = scheduler.next();
    while (find(next, tile)) {
      load(tile, [&] {
        if (is_leader()) scheduler.ask(counter);
        next = __shfl_sync(~0u, scheduler.next(), 0);
      });
    }
    if (!Config::overlaps_tiles) request_last_values();
    announce({});
    request_last_values();
    if (is_leader()) scheduler.finish(counter);
  }

 private:
  __device__ static bool is_leader() { return threadIdx.x == 0; }

  // The tile `index` of all, each head's by itself.
  __device__ __forceinline__ bool find(int index, Announced& found) const {
    const int all_heads = static_cast<int>(args_.H);
    Tile<Config> tile;
    if (!tile.find(args_, index, all_heads)) return false;
    if (args_.cu_seqlens_q.data == nullptr && tile.sequence >= args_.Nq) return false;
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

  // Announces a tile and requests what it needs, but for its last values. Calls `at_last_block`
  // when it is there.
  template <class F>
  __device__ __forceinline__ void load(const Announced& tile, const F& at_last_block) {
    // If tiles do not overlap, the last product of one precedes the next one's scores.
    if (!Config::overlaps_tiles) request_last_values();
    announce(tile);
    const int kv_head = tile.head / static_cast<int>(args_.H / args_.Hk);
    Block keys{tile.key_blocks - 1, kv_head,        tile.sequence,
               tile.key_entry,      tile.first_key, tile.end};
    for (; keys.index >= tile.first_key_block; --keys.index) {
      if (keys.index == tile.first_key_block) at_last_block();
      request<typename Shared::Keys>(problem_.k, keys_, shared_.keys(keys_.buffer()), keys);
      request_last_values();
      last_values_ = keys;
    }
  }

  __device__ __forceinline__ void request_last_values() {
    if (last_values_.index < 0) return;
    request<typename Shared::Values>(problem_.v, values_, shared_.values(values_.buffer()),
                                     last_values_);
    last_values_.index = -1;
  }

  __device__ __forceinline__ void announce(const Announced& tile) {
    if (is_leader()) store_tile(shared_.tile(slot_.buffer()), tile);
    slot_.advance();
    for (int warpgroup = 0; warpgroup < Config::n_warpgroups; ++warpgroup) {
      const std::uint32_t full =
          shared_.template full<typename Shared::Queries>(queries_.buffer(), warpgroup);
      queries_.wait_empty(shared_, warpgroup);
      if (!is_leader()) continue;
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

  // A block, of which each lane requests what it has of one page.
  template <class Ring>
  __device__ __forceinline__ void request(const MappedTensor& tensor, RingPosition<Ring>& ring,
                                          std::uint32_t destination, const Block& block) {
    const std::uint32_t full = shared_.template full<Ring>(ring.buffer());
    ring.wait_empty(shared_);
    if (is_leader()) ptx::mbarrier_arrive_expecting(full, Shared::kBlockBytes);
    __syncwarp();
    ring.advance();
    const int first = threadIdx.x * problem_.box_rows;  // of the block
    if (first >= Config::B_c) return;
    int row = block.index * Config::B_c + first, entry = block.entry;
    if (args_.block_table.data != nullptr) {
      const int size = static_cast<int>(args_.Tk), page = static_cast<unsigned>(row) / size;
      // Keys that are not there are masked: any page will do.
      entry = row < block.end ? *args_.block_table.template at<const i32>(block.sequence, page) : 0;
      row -= page * size;
    } else {
      row += block.first_key;
    }
    for (int panel = 0; panel < Shared::kPanels; ++panel)
      ptx::tma_load_4d(destination + panel * Config::B_c * kPanelRowBytes + first * kPanelRowBytes,
                       tensor.map, full, cache_policy(), panel * 64, row,
                       block.head * tensor.head_step, entry * tensor.batch_step);
  }

  // Made anew each time: this warp has few registers.
  __device__ __forceinline__ static std::uint64_t cache_policy() {
    return ptx::make_cache_policy<ptx::CachePolicy::kEvictLast>();
  }

  const Problem<Args>& problem_;
  const Args& args_;
  const Shared shared_;
  Block last_values_{-1, 0, 0, 0, 0, 0};  // still to be requested: scores are made a block ahead
  RingPosition<typename Shared::Tiles> slot_;
  RingPosition<typename Shared::Queries> queries_;
  RingPosition<typename Shared::Keys> keys_;
  RingPosition<typename Shared::Values> values_;
};

}  // namespace kernelmint::flash_prefill::sm90a
