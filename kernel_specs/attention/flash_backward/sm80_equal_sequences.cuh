// Sequences of equal lengths: which blocks of queries a block of keys meets, and where both lie.
#pragma once

#include <cstdint>

#include "attention/flash_backward/problem.h"
#include "attention/flash_backward/sm80_trace.cuh"
#include "attention/sm80_backward_block.cuh"
#include "ptx/special_registers.cuh"
#include "register_tile.cuh"

namespace kernelmint::flash_backward::sm80 {

using attention_backward::sm80::Position;

// The rows of a tensor before `end`, with all columns.
struct Rows {
  int end;
  __device__ __forceinline__ bool has(int row, int) const { return row < end; }
};

// The main kernel's view of a call.
template <class Config>
struct EqualSequences {
  using Problem = flash_backward::Problem<typename Config::Args>;
  using Tile = flash_backward::Tile;
  using Trace = sm80::Trace<Config>;

  static constexpr bool kTraces = Traced<Config>;
  static constexpr int kTileBytes = 0;           // the tile takes no shared memory
  static constexpr bool kChangesScores = false;  // scores are products times a factor
  // True if a query sees all keys up to the last one that it sees.
  static constexpr bool kSeesFirstKeys = true;

  __device__ __forceinline__ static Tile tile(const Problem& problem) {
    return tile_of<Config>(problem, blockIdx.x);
  }
  __device__ __forceinline__ static Tile tile_again(const Problem& problem) {
    return tile_of<Config>(problem, ptx::reread_block_index());
  }

  __device__ __forceinline__ static float scale(const Problem& problem) {
    return problem.args.scale;
  }
  // The factor that makes a score an exponent of two, before the log-sum-exp is subtracted.
  __device__ __forceinline__ static float factor(const Problem& problem) {
    return problem.scale_log2;
  }
  __device__ __forceinline__ static int columns(const Problem&) { return Config::d_head; }
  __device__ __forceinline__ static int value_columns(const Problem&) { return Config::d_head; }

  // Where the tile's sequence begins in its tensors, and which of its rows there are.
  __device__ __forceinline__ static int query_entry(const Tile& tile) { return tile.batch; }
  __device__ __forceinline__ static int query_row(const Tile&) { return 0; }
  __device__ __forceinline__ static Rows used_queries(const Problem& problem, const Tile&, int) {
    return {static_cast<int>(problem.args.Sq)};
  }
  __device__ __forceinline__ static int key_entry(const Tile& tile) { return tile.batch; }
  __device__ __forceinline__ static int key_row(const Tile&) { return 0; }
  __device__ __forceinline__ static Rows used_keys(const Problem& problem, const Tile&, int) {
    return {static_cast<int>(problem.args.Sk)};
  }
  __device__ __forceinline__ static Rows all_keys(const Problem& problem, const Tile&, int) {
    return {static_cast<int>(problem.args.Sk)};
  }

  // All heads of a group have a block of queries before the next one's turn.
  __device__ __forceinline__ static bool has(const Problem&, const Tile& tile, const Position& at) {
    return at.n < tile.blocks;
  }
  __device__ __forceinline__ static Position after(const Problem& problem, const Tile&,
                                                   const Position& at) {
    return at.head + 1 < problem.group ? Position{at.n, at.head + 1} : Position{at.n + 1, 0};
  }
  __device__ __forceinline__ static int nth_block(const Problem& problem, const Tile& tile, int n) {
    return flash_backward::nth_block<Config>(problem, tile, n);
  }
  __device__ __forceinline__ static int block_index(const Problem& problem, const Tile& tile,
                                                    int head, int block) {
    return flash_backward::block_index(problem, tile.batch, head, block);
  }
  __device__ __forceinline__ static int blocks_before(const Problem& problem, const Tile& tile,
                                                      int block) {
    return flash_backward::blocks_before<Config>(problem, tile, block);
  }
};

}  // namespace kernelmint::flash_backward::sm80
