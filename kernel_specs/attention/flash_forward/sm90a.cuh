// Attention forward for compute capability 9.0: FlashAttention-3 (Shah et al., 2024) on TMA and
// wgmma. Thread blocks are persistent and specialised: one thread is the producer, which loads, and
// one to three warpgroups are consumers, which compute 64 query rows each. In the mainloop a
// warpgroup's products run beside its own softmax: while it turns the scores of a block of keys
// into probabilities, the tensor cores multiply those of the block before with V. With two buffers
// of Q this goes on from tile to tile: the next tile's prologue, its first scores, runs beside this
// one's epilogue, its last product, so that the tensor cores never wait for a tile to begin or end.
#pragma once

#include <cstdint>
#include <type_traits>

#include "attention/flash_forward/sm90a_announced.cuh"
#include "attention/flash_forward/sm90a_epilogue.cuh"
#include "attention/flash_forward/sm90a_mask.cuh"
#include "attention/flash_forward/sm90a_parts.cuh"
#include "attention/flash_forward/sm90a_problem.h"
#include "attention/flash_forward/sm90a_producer.cuh"
#include "attention/flash_forward/sm90a_tile_scheduler.cuh"
#include "attention/flash_forward/sm90a_trace.cuh"
#include "attention/sm90a_warpgroup.cuh"
#include "attention/softmax.cuh"
#include "flash_forward/sm90a_wgmma.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/special_registers.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "ptx/wgmma.cuh"
#include "register_tile.cuh"

namespace kernelmint::flash_forward {
namespace sm90a {

using namespace attention;

// The parts that a consumer needs beside its products.
template <class Config>
struct Context {
  using Scores = RegisterTile<16, Config::B_c>;
  using ProblemOfArgs = Problem<typename Config::Args>;
  static constexpr bool kKeepsDescriptors = true;

  __device__ Context(const ProblemOfArgs& problem, const SharedMemory<Config>& shared,
                     int warpgroup)
      : mask(problem, warpgroup, threadIdx.x % 128 / 32 * 16 + Scores::first_row(threadIdx.x % 32),
             Scores::first_column(threadIdx.x % 32)),
        split(problem.split),
        epilogue(problem, shared, warpgroup),
        trace(problem.args) {}

  const Mask<Config> mask;
  const KeySplit& split;
  const Epilogue<Config> epilogue;
  const Trace<Config> trace;
};

// A consumer warpgroup. Scores are made one block of keys ahead of the output.
template <class Config>
class Consumer : Warpgroup<Config, SharedMemory<Config>, Context<Config>> {
  using Shared = SharedMemory<Config>;
  using Base = Warpgroup<Config, Shared, Context<Config>>;
  using Base::request_products, Base::request_scores, Base::request_output, Base::exponentiate,
      Base::pack_probabilities, Base::complete_output, Base::skip, Base::skip_keys,
      Base::skip_values, Base::left_operand, Base::queries, Base::keys;
  using Base::shared_, Base::warpgroup_, Base::ping_pong_, Base::slot_, Base::queries_, Base::keys_,
      Base::values_, Base::context_, Base::changes_scores_, Base::softmax_, Base::accumulate_,
      Base::scores_, Base::probabilities_, Base::q_, Base::output_;
  using typename Base::Output, typename Base::Scores, typename Base::Softmax;
  using Args = typename Config::Args;

 public:
  __device__ Consumer(const Problem<Args>& problem, const Shared& shared, int warpgroup)
      : Base(shared, warpgroup, problem, problem.args.scale < 0, softmax_scale(problem.args)) {}

  __device__ __forceinline__ void run() {
    run_tiles<Tile>();
    if (!Config::trace && context_.split.tiles > 0) run_tiles<TilePart>();
    ping_pong_.end();
    context_.epilogue.finish();
  }

 private:
  // A tile, and the last of its blocks of keys that the warpgroup looks at.
  template <class AnyTile>
  struct Walk : AnyTile {
    int last_block;
  };

  template <class AnyTile>
  __device__ __forceinline__ void run_tiles() {
    Walk<AnyTile> tile;
    prologue(tile);
    while (tile.key_blocks > 0) {
      mainloop(tile);
      if constexpr (Config::overlaps_tiles && std::is_same_v<AnyTile, Tile>)
        epilogue_beside_prologue(tile);
      else
        epilogue_then_prologue(tile);
    }
    // Without a tile there is no Q: the buffer goes on.
    queries_.release(shared_, warpgroup_);
    queries_.advance();
  }

  // All blocks of keys but the first one taken, whose scores the prologue made, and the last
  // product, which the epilogue makes. Blocks that need masks come first.
  template <class AnyTile>
  __device__ __forceinline__ void mainloop(const Walk<AnyTile>& tile) {
    pack_probabilities();
    for_hidden_blocks(tile, [&](int block) { skip_values(tile, block); });
    int block = tile.last_block - 1;
    if (context_.mask.is_outside(tile))
      for (; block >= tile.first_key_block; --block) skip(tile, block);
    if constexpr (Config::causal) {
      const int last = max(context_.mask.first_masked_block(tile), tile.first_key_block);
      for (; block >= last; --block) step<true>(tile, block);
    }
    for (; block >= tile.first_key_block; --block) step<false>(tile, block);
  }

  // S = Q K^T of this block and O += P V of the one before, and the softmax of S beside the latter.
  template <bool kMasked, class AnyTile>
  __device__ __forceinline__ void step(const Walk<AnyTile>& tile, int block) {
    request_products();
    ptx::wgmma_wait_group<1>();
    complete_scores<false>(tile, block);
    if constexpr (kMasked) context_.mask.apply(scores_, tile, block);
    DeferredFactors<2> factors;
    const Softmax before = softmax_;
    const bool rescaled = softmax_.template update_maximum<false>(scores_, factors);
    exponentiate();
    context_.trace.statistics(tile, block, before, softmax_);
    ptx::wgmma_wait_group<0>();
    complete_output(tile, block + 1);
    pack_probabilities();
    if (rescaled) factors.apply(output_);
  }

  // The epilogue of `tile`, its last product, beside the prologue of the next one, its first
  // scores. `tile` becomes that one.
  __device__ __forceinline__ void epilogue_beside_prologue(Walk<Tile>& tile) {
    const Tile finished = tile;
    const Softmax softmax = softmax_;
    queries_.advance();
    take(tile);
    if (tile.key_blocks > 0) {
      request_products();
      ptx::wgmma_wait_group<1>();
      first_softmax(tile);
    } else {
      request_output();
    }
    ptx::wgmma_wait_group<0>();
    complete_output(finished, finished.first_key_block);
    store_output(finished, softmax);
    accumulate_ = false;
  }

  // One after the other, if the next tile's Q takes the buffer of this one's: O is stored while
  // that Q is on its way.
  template <class AnyTile>
  __device__ __forceinline__ void epilogue_then_prologue(Walk<AnyTile>& tile) {
    ping_pong_.wait();
    request_output();
    ping_pong_.pass();
    ptx::wgmma_wait_group<0>();
    complete_output(tile, tile.first_key_block);
    store_output(tile, softmax_);
    accumulate_ = false;
    queries_.advance();
    prologue(tile);
  }

  // Takes a tile and makes its first scores.
  template <class AnyTile>
  __device__ __forceinline__ void prologue(Walk<AnyTile>& tile) {
    take(tile);
    if (tile.key_blocks > 0) {
      request_scores();
      ptx::wgmma_wait_group<0>();
      first_softmax(tile);
    }
  }

  // Stores the output of a finished tile, or of this thread block's part of the tile.
  __device__ __forceinline__ void store_output(const Tile& tile, const Softmax& softmax) {
    if constexpr (Config::overlaps_tiles)
      context_.epilogue.through_shared(tile, output_, softmax);
    else
      context_.epilogue.to_global(tile, output_, softmax);
  }
  __device__ __forceinline__ void store_output(const TilePart& part, const Softmax& softmax) {
    // Under a mask, with two mainloops, registers are short: values that follow from it are not
    // kept.
    const int warpgroup = Config::causal ? ptx::recomputed(warpgroup_) : warpgroup_;
    Parts<Config>(context_.split, warpgroup).store(part.index, output_, softmax);
  }

  template <bool kFirst, class AnyTile>
  __device__ __forceinline__ void complete_scores(const AnyTile& tile, int block) {
    ptx::pin(scores_.accumulator(0));
    context_.trace.scores(tile, block, left_operand(), keys(), scores_);
    keys_.release(shared_);
    keys_.advance();
    // Registers have surely been read from Q's buffer once a product with them is complete.
    if (Config::q_in_registers ? kFirst : block == tile.first_key_block) {
      if constexpr (Config::q_in_registers) ptx::fence_async_shared();
      queries_.release(shared_, warpgroup_);
    }
    // The running maximum wants a positive factor.
    if (ptx::recomputed(changes_scores_) != 0)
      scores_.for_each([](float& score) { score = -score; });
  }

  // The first scores of a tile, and their softmax.
  template <class AnyTile>
  __device__ __forceinline__ void first_softmax(const Walk<AnyTile>& tile) {
    const int block = tile.last_block;
    complete_scores<true>(tile, block);
    if (block >= context_.mask.first_masked_block(tile)) context_.mask.apply(scores_, tile, block);
    softmax_.restart();
    const Softmax before = softmax_;
    softmax_.template update_maximum<true>(scores_, output_);
    exponentiate();
    context_.trace.statistics(tile, block, before, softmax_);
  }

  template <class AnyTile>
  __device__ __forceinline__ void take(Walk<AnyTile>& tile) {
    queries_.wait_full(shared_, warpgroup_);
    if constexpr (Config::q_in_registers) load_queries<Config>(q_, queries());
    load_tile(shared_.tile(slot_.buffer()), tile);
    slot_.advance();
    tile.last_block = context_.mask.last_block(tile);
    for_hidden_blocks(tile, [&](int block) { skip_keys(tile, block); });
  }

  // Once for each block of keys that the mask hides from this warpgroup, if not from others.
  template <class AnyTile, class F>
  __device__ __forceinline__ void for_hidden_blocks(const Walk<AnyTile>& tile, const F& f) const {
    if constexpr (Config::causal)
      for (int block = tile.key_blocks - 1; block > tile.last_block; --block) f(block);
  }
};

}  // namespace sm90a

template <class Config>
__global__ void __launch_bounds__(Config::threads, 1)
    flash_forward_sm90a(const __grid_constant__ sm90a::Problem<typename Config::Args> problem) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const sm90a::SharedMemory<Config> shared(ptx::shared_address(shared_memory));
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) shared.initialise_barriers();
  if (threadIdx.x == 32) {
    ptx::prefetch_tensor_map(problem.q.map);
    ptx::prefetch_tensor_map(problem.k.map);
    ptx::prefetch_tensor_map(problem.v.map);
    ptx::prefetch_tensor_map(problem.o.map);
  }
  __syncthreads();
  if (warpgroup == 0) {
    ptx::decrease_registers<Config::producer_registers>();
    if (threadIdx.x == 0) sm90a::Producer<Config>(problem, shared).run();
  } else {
    ptx::increase_registers<Config::consumer_registers>();
    sm90a::Consumer<Config>(problem, shared, warpgroup - 1).run();
  }
}

}  // namespace kernelmint::flash_forward

#include "attention/flash_forward/sm90a_launch.cuh"
