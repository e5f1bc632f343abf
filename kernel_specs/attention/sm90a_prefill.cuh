// Attention of sequences of any lengths for compute capability 9.0: flash_forward's warpgroups, on
// TMA and wgmma, over the queries of all sequences as one list of tiles.
//
// The producer reads lengths, on the device, and finds tile after tile. It walks the blocks of keys
// that a tile's window holds, from the last to the first. A feature that is not asked for costs a
// branch that all threads of a warpgroup take.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "attention/dropout.cuh"
#include "attention/prefill_scores.cuh"
#include "attention/sm90a_prefill_epilogue.cuh"
#include "attention/sm90a_prefill_producer.cuh"
#include "attention/sm90a_prefill_tile.cuh"
#include "attention/sm90a_tensor_maps.cuh"
#include "attention/sm90a_tile_counter.cuh"
#include "attention/sm90a_warpgroup.cuh"
#include "attention/softmax.cuh"
#include "cuda_launch.cuh"
#include "integers.h"
#include "ptx/shared_memory.cuh"
#include "ptx/special_registers.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "ptx/wgmma.cuh"
#include "register_tile.cuh"

namespace kernelmint::flash_prefill {
namespace sm90a {

// The parts that a consumer needs beside its products.
template <class Config>
struct Context {
  // At d 256 Q has 16 descriptors: kept throughout a loop they take all uniform registers, and
  // others are spilled. They are made anew for each block of keys instead.
  static constexpr bool kKeepsDescriptors = Config::d_head <= 128;

  __device__ Context(const Problem<typename Config::Args>& problem, const SharedMemory<Config>&,
                     int)
      : args(problem.args) {}

  const typename Config::Args& args;
  const NoTrace trace{};
};

// A consumer warpgroup. Scores are made one block of keys ahead of the output.
//
// Registers are short: facts about a tile are read again where they are needed, and a kernel that
// does more to scores than multiply them by a factor is another one, with `kChangesScores`.
template <class Config, bool kChangesScores>
class Consumer : Warpgroup<Config, SharedMemory<Config>, Context<Config>> {
  using Shared = SharedMemory<Config>;
  using Base = Warpgroup<Config, Shared, Context<Config>>;
  using Base::request_products, Base::request_scores, Base::request_output, Base::exponentiate,
      Base::pack_probabilities, Base::complete_output, Base::skip_keys, Base::skip_values,
      Base::queries, Base::values;
  using Base::shared_, Base::warpgroup_, Base::ping_pong_, Base::queries_, Base::keys_,
      Base::values_, Base::context_, Base::softmax_, Base::accumulate_, Base::scores_, Base::q_,
      Base::output_;
  using typename Base::Output, typename Base::Scores, typename Base::Softmax;
  using Args = typename Config::Args;

  // True if the tile after this one waits for this tile's buffer of Q. Otherwise the buffer is
  // given back after the walk.
  static constexpr bool kDropsOut = DropsOut<Args>;
  static constexpr bool kReleasesInStep = !Config::q_in_registers && Config::q_buffers == 1;

 public:
  __device__ Consumer(const Problem<Args>& problem, const Shared& shared, int warpgroup)
      : Base(shared, warpgroup, problem, kChangesScores,
             changes_scores(problem.args) ? 1
                                          : fmaxf(fabsf(problem.args.softmax_scale), kLeastScale)) {
  }

  __device__ __forceinline__ void run() {
    Walk tile{.slot = shared_.tile(Shared::Tiles::kBuffers - 1)};
    prologue(tile);
    while (tile.last_block >= 0) {
      mainloop(tile);
      if constexpr (Config::overlaps_tiles)
        epilogue_beside_prologue(tile);
      else
        epilogue_then_prologue(tile);
    }
    // Without a tile there is no Q: the buffer goes on.
    queries_.release(shared_, warpgroup_);
    queries_.advance();
    ping_pong_.end();
  }

 private:
  // A tile that is walked.
  struct Walk {
    std::uint32_t slot;   // where it is announced
    int last_block;       // the last block of keys that the warpgroup looks at; -1: no more tiles
    bool is_masked;       // true if some rows do not see all of that block
    int first_key_block;  // with kReleasesInStep
  };

  // Blocks of keys of a slab: all rows see the whole blocks from `first_whole` to before
  // `whole_behind`; without such blocks both are `first`.
  struct Edges {
    int first, first_whole, whole_behind;
    bool is_outside;  // no row is a query
  };

  // All blocks of keys but the first one taken, whose scores the prologue made, and the last
  // product, which the epilogue makes. Those that not all rows see whole are at the ends.
  __device__ __forceinline__ void mainloop(const Walk& tile) {
    pack_probabilities();
    int block = tile.last_block - 1;
    for (int i = hidden_blocks(tile); i > 0; --i) skip_values(tile, 0);
    if (edges(tile).is_outside) {
      const bool is_one = block < edges(tile).first;
      for (; block >= edges(tile).first; --block) {
        skip_keys(tile, block);
        skip_values(tile, block + 1);
      }
      if (kReleasesInStep && !is_one) queries_.release(shared_, warpgroup_);
    }
    clean_values(tile, block + 1);
    for (;;) {
      const Edges at = edges(tile);
      if (block < at.first) break;
      int end = block >= at.whole_behind  ? at.whole_behind
                : block >= at.first_whole ? block + 1
                                          : at.first;
      for (; block >= end; --block) step<true>(tile, block);
      end = edges(tile).first_whole;
      for (; block >= end; --block) step<false>(tile, block);
    }
    if constexpr (!Config::q_in_registers && !kReleasesInStep)
      queries_.release(shared_, warpgroup_);
  }

  // S = Q K^T of this block and O += P V of the one before, and the softmax of S beside the latter.
  template <bool kMasked>
  __device__ __forceinline__ void step(const Walk& tile, int block) {
    request_products();
    ptx::wgmma_wait_group<1>();
    complete_scores<false>(tile, block);
    if constexpr (kMasked) mask(tile, block);
    DeferredFactors<2> factors;
    const bool rescaled = softmax_.template update_maximum<false>(scores_, factors);
    exponentiate();
    if constexpr (kDropsOut) drop(tile, block);
    ptx::wgmma_wait_group<0>();
    complete_output(tile, block + 1);
    pack_probabilities();
    if (rescaled) factors.apply(output_);
    if constexpr (kMasked) clean_values(tile, block);
  }

  // The epilogue of `tile`, its last product, beside the prologue of the next one, its first
  // scores. `tile` becomes that one.
  __device__ __forceinline__ void epilogue_beside_prologue(Walk& tile) {
    const std::uint32_t finished = tile.slot;
    const Softmax softmax = softmax_;
    queries_.advance();
    take(tile);
    if (tile.last_block >= 0) {
      request_products();
      ptx::wgmma_wait_group<1>();
      first_softmax(tile);
    } else {
      request_output();
    }
    ptx::wgmma_wait_group<0>();
    complete_output(tile, 0);
    store_output(finished, softmax);
    accumulate_ = false;
  }

  // One after the other, if the next tile's Q takes the buffer of this one's: O is stored while
  // that Q is on its way.
  __device__ __forceinline__ void epilogue_then_prologue(Walk& tile) {
    ping_pong_.wait();
    request_output();
    ping_pong_.pass();
    ptx::wgmma_wait_group<0>();
    complete_output(tile, 0);
    store_output(tile.slot, softmax_);
    accumulate_ = false;
    queries_.advance();
    prologue(tile);
  }

  // Takes a tile and makes its first scores.
  __device__ __forceinline__ void prologue(Walk& tile) {
    take(tile);
    if (tile.last_block >= 0) {
      request_scores();
      ptx::wgmma_wait_group<0>();
      first_softmax(tile);
    }
  }

  __device__ __forceinline__ void store_output(std::uint32_t slot, const Softmax& softmax) {
    Epilogue<Config>(context_.args, slot, warpgroup_).store(output_, softmax);
  }

  template <bool kFirst>
  __device__ __forceinline__ void complete_scores(const Walk& tile, int block) {
    ptx::pin(scores_.accumulator(0));
    keys_.release(shared_);
    keys_.advance();
    if constexpr (Config::q_in_registers && kFirst) {
      // Registers have surely been read from Q's buffer once a product with them is complete.
      ptx::fence_async_shared();
      queries_.release(shared_, warpgroup_);
    } else if constexpr (kReleasesInStep) {
      if (block == tile.first_key_block) queries_.release(shared_, warpgroup_);
    }
    if constexpr (kChangesScores) change(tile, block);
  }

  // The first scores of a tile, and their softmax.
  __device__ __forceinline__ void first_softmax(const Walk& tile) {
    const int block = tile.last_block;
    complete_scores<true>(tile, block);
    if (tile.is_masked) mask(tile, block);
    softmax_.restart();
    softmax_.template update_maximum<true>(scores_, output_);
    exponentiate();
    if constexpr (kDropsOut) drop(tile, block);
  }

  __device__ __forceinline__ void take(Walk& walk) {
    queries_.wait_full(shared_, warpgroup_);
    if constexpr (Config::q_in_registers) load_queries<Config>(q_, queries());
    const bool is_last = walk.slot == shared_.tile(Shared::Tiles::kBuffers - 1);
    walk.slot = is_last ? shared_.tile(0) : walk.slot + sizeof(Announced);
    const Announced tile = load_tile<0, 3>(walk.slot);
    if constexpr (kReleasesInStep) walk.first_key_block = tile.first_key_block;
    walk.last_block = tile.key_blocks - 1;
    const Seen seen(context_.args, tile);
    const int first = tile.first_query + warpgroup_ * kSlabRows;
    const int last = min(first + kSlabRows, tile.queries) - 1;
    // No more blocks may be passed over than have come.
    const int behind = ceil_div(max(seen.behind(last), 0), Config::B_c);
    if (first <= last && behind <= walk.last_block)
      walk.last_block =
          max(behind - 1, max(tile.key_blocks - Config::stages, tile.first_key_block));
    const Edges at = edges(walk);
    walk.is_masked = walk.last_block >= at.whole_behind || walk.last_block < at.first_whole;
    for (int i = hidden_blocks(walk); i > 0; --i) skip_keys(walk, 0);
  }

  // Blocks after the last one, which other warpgroups look at.
  __device__ __forceinline__ int hidden_blocks(const Walk& walk) const {
    return load_tile<0, 1>(walk.slot).key_blocks - 1 - walk.last_block;
  }

  __device__ __forceinline__ Edges edges(const Walk& walk) const {
    const Announced tile = load_tile<0, 3>(ptx::recomputed(walk.slot));
    const Seen seen(context_.args, tile);
    const int first = tile.first_query + warpgroup_ * kSlabRows;
    const int last = min(first + kSlabRows, tile.queries) - 1;
    Edges found{tile.first_key_block, ceil_div(max(seen.first(last), 0), Config::B_c),
                max(seen.behind(first), 0) / Config::B_c, first > last};
    found.first_whole = max(found.first_whole, found.first);
    if (found.first_whole >= found.whole_behind)
      found.first_whole = found.whole_behind = found.first;
    return found;
  }

  // The query of the lane's row `row`.
  __device__ __forceinline__ int query_of(const Announced& tile, int row) const {
    const int thread = ptx::reread_thread_index() % 128;
    return tile.first_query + warpgroup_ * kSlabRows + thread / 32 * 16 +
           Scores::first_row(thread % 32) + Scores::row_of(row);
  }

  // Products become scores, if not all that is done to them is a factor; the running maximum wants
  // a positive one.
  __device__ __forceinline__ void change(const Walk& walk, int block) {
    if (!changes_scores(context_.args)) {
      scores_.for_each([](float& score) { score = -score; });
      return;
    }
    const Announced tile = load_tile<0, 3>(walk.slot);
    const int first_key = block * Config::B_c + Scores::first_column(threadIdx.x % 32);
    change_scores(scores_, context_.args, tile.sequence, tile.head, [&](int row) {
      return query_of(tile, row) + tile.end - tile.queries - first_key;
    });
  }

  // Probabilities that are dropped become 0, once they are in the sums.
  __device__ __forceinline__ void drop(const Walk& walk, int block) {
    const Announced tile = load_tile<0, 2>(walk.slot);
    drop_out<Config::B_c>(dropout_of(context_.args, tile.sequence, tile.head),
                          drop_threshold(context_.args.dropout_p), query_of(tile, 0),
                          block * Config::B_c,
                          [&](int row, int column) { scores_(row, column) = 0; });
  }

  // Scores of keys that a row does not see become -inf.
  __device__ __forceinline__ void mask(const Walk& walk, int block) {
    const Announced tile = load_tile<1, 2>(walk.slot);
    const Seen seen(context_.args, tile);
    const int first_key =
        block * Config::B_c + Scores::first_column(ptx::reread_thread_index() % 32);
    // A lane has two of every 8 columns: the number of its columns before a key.
    const auto columns_before = [&](int key) {
      const int columns = max(key - first_key, 0);
      return columns / 8 * 2 + min(columns % 8, 2);
    };
    const auto lower_bits = [](int count) {
      count = min(max(count, 0), 32);
      return count == 0 ? 0 : ~0u >> (32 - count);
    };
    unroll<Scores::kLaneRows>([&](int row) {
      const int query = query_of(tile, row);
      const int from = columns_before(seen.first(query)), to = columns_before(seen.behind(query));
      unroll<ceil_div(Scores::kLaneColumns, 32)>([&](int word) {
        const std::uint32_t bits = lower_bits(to - 32 * word) & ~lower_bits(from - 32 * word);
        unroll<32>([&](int i) {
          const int column = 32 * word + i;
          if (column < Scores::kLaneColumns && (bits >> i & 1) == 0)
            scores_(row, column) = -kInfinity;
        });
      });
    });
  }

  // 0 times a value that is not finite is NaN. Values of keys outside the sequence, which may be
  // anything, become 0 in shared memory; the epilogue deals with values of the sequence that a row
  // does not see. All warpgroups write the same.
  __device__ __forceinline__ void clean_values(const Walk& walk, int block) {
    const Announced tile = load_tile<2, 1>(walk.slot);
    const int first_key = block * Config::B_c;
    const int begin = tile.begin - first_key, end = max(tile.end - first_key, 0);
    if (begin <= 0 && end >= Config::B_c) return;
    values_.wait_full(shared_);
    const std::uint32_t thread = ptx::reread_thread_index() % 128;
#pragma unroll 1
    for (int panel = 0; panel < Shared::kPanels; ++panel) {
      const std::uint32_t rows = values() + panel * Config::B_c * kPanelRowBytes;
      const std::uint32_t behind = rows + Config::B_c * kPanelRowBytes;
#pragma unroll 1
      for (std::uint32_t at = rows + end * kPanelRowBytes + thread * 16; at < behind;
           at += 128 * 16)
        ptx::store_shared(at, uint4{});
#pragma unroll 1
      for (std::uint32_t at = rows + thread * 16;
           static_cast<int>(at - rows) < min(begin, Config::B_c) * kPanelRowBytes; at += 128 * 16)
        ptx::store_shared(at, uint4{});
    }
    ptx::fence_async_shared();
    ptx::named_barrier_sync(1 + Config::n_warpgroups + warpgroup_, 128);
  }
};

}  // namespace sm90a

// Two kernels: one multiplies scores by a factor, the other does all other changes.
template <class Config, bool kChangesScores>
__global__ void __launch_bounds__(Config::threads, 1)
    flash_prefill_sm90a(const __grid_constant__ sm90a::Problem<typename Config::Args> problem) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const sm90a::SharedMemory<Config> shared(ptx::shared_address(shared_memory));
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) shared.initialise_barriers();
  if (threadIdx.x == 32) {
    ptx::prefetch_tensor_map(problem.q.map);
    ptx::prefetch_tensor_map(problem.k.map);
    ptx::prefetch_tensor_map(problem.v.map);
  }
  __syncthreads();
  if (warpgroup == 0) {
    ptx::decrease_registers<Config::producer_registers>();
    if (threadIdx.x < 32) sm90a::Producer<Config>(problem, shared).run();
  } else {
    ptx::increase_registers<Config::consumer_registers>();
    sm90a::Consumer<Config, kChangesScores>(problem, shared, warpgroup - 1).run();
  }
}

}  // namespace kernelmint::flash_prefill

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using namespace flash_prefill::sm90a;
  using Element = typename Config::dtype;
  auto args = *static_cast<const typename Config::Args*>(pointer);
  if (args.Nq == 0 || args.Tq == 0 || args.H == 0) return {};
  const DeviceScope device(context.device);
  if (device.error != nullptr) return {device.error};
  args.softcap = usable_cap(args.softcap);
  Problem<typename Config::Args> problem{.args = args};
  if (args.Nk == 0) problem.args.pages = 0;  // a table cannot name any
  const bool has_pages = args.block_table.data != nullptr;
  problem.box_rows = has_pages ? std::gcd(static_cast<int>(args.Tk), Config::B_c) : Config::B_c;
  // A map has no empty extent. Without keys any memory will do: the values that are read are not
  // used.
  const bool has_keys = args.Nk > 0 && args.Tk > 0;
  const auto keys = [&](const char* name, const ConstTensorView<4>& tensor, std::int64_t columns) {
    return has_keys ? Layout(name, tensor, columns, args.Tk, args.Hk, args.Nk)
                    : Layout(name, args.q, args.D, 1, 1, 1);
  };
  const Layout q("q", args.q, args.D, args.Tq, args.H, args.Nq);
  for (const LaunchResult& result : {encode_keys<Element>(problem.q, q, kSlabRows, context.device),
                                     encode_keys<Element>(problem.k, keys("k", args.k, args.D),
                                                          problem.box_rows, context.device),
                                     encode_keys<Element>(problem.v, keys("v", args.v, args.Dv),
                                                          problem.box_rows, context.device)})
    if (result.error != nullptr) return result;
  const cudaError_t status = find_counter(context, problem.counter);
  if (status != cudaSuccess) return {cudaGetErrorString(status)};
  // The greatest possible number of tiles, whatever the lengths are.
  const std::int64_t row_tiles = args.cu_seqlens_q.data != nullptr
                                     ? (args.Tq + args.Cq * (Config::B_r - 1)) / Config::B_r
                                     : args.Nq * ceil_div(args.Tq, std::int64_t{Config::B_r});
  const std::int64_t blocks = std::min<std::int64_t>(row_tiles * args.H, context.facts.sm_count);
  const CudaLaunch how{
      .grid = {blocks}, .block = {Config::threads}, .shared_memory = Config::smem_bytes};
  if (flash_prefill::changes_scores(args) || args.softmax_scale < 0)
    return launch_cuda<&flash_prefill::flash_prefill_sm90a<Config, true>>(how, context, problem);
  return launch_cuda<&flash_prefill::flash_prefill_sm90a<Config, false>>(how, context, problem);
}

}  // namespace kernelmint
