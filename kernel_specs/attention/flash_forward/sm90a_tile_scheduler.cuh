// The tile scheduler: which tiles of the output there are, their order, and which one a persistent
// thread block takes next.
#pragma once

#include <cstdint>

#include "attention/flash_forward/sm90a_problem.h"
#include "attention/sm90a_tile_counter.cuh"
#include "integers.h"

namespace kernelmint::flash_forward::sm90a {

// The queries of B_r rows, of one head or of heads that are packed. Its blocks of keys are walked
// from the last to the first, so that the blocks that need masks come first.
struct Tile {
  int first_query, head, batch;  // heads that are packed count as one
  int key_blocks;                // at least 1, seen or not; 0: there are no more tiles

  static constexpr int first_key_block = 0;
};

// One thread block's part of a tile whose keys are split. It is a type of its own, so that whole
// tiles do not pay for its members.
struct TilePart : Tile {
  int first_key_block;  // others have those before it, and those from `key_blocks` on
  int index;            // where its output and statistics wait for the tile's other parts
};

// The order of tiles. Those that share keys and values are neighbours, which keeps these in the L2
// cache. Under a causal mask tiles are of different lengths: the longest of a section, some heads,
// come first, so that no long one is left when the others are done.
//
// Everything is computed anew for each tile: the producer has few registers.
template <class Config>
class TileOrder {
  using ProblemOfArgs = Problem<typename Config::Args>;

 public:
  __device__ explicit TileOrder(const ProblemOfArgs& problem) : problem_(problem) {}

  // Tiles that one thread block computes as a whole; they come first.
  __device__ __forceinline__ int whole_tiles() const { return problem_.split.whole_tiles; }

  __device__ __forceinline__ int kv_head(const Tile& tile) const {
    return tile.head / problem_.heads_of_a_group;
  }

  __device__ __forceinline__ Tile operator[](int index) const {
    const int row_blocks = problem_.row_blocks;
    int row_block, head;
    if constexpr (Config::causal) {
      const int section = index / (row_blocks * problem_.section_heads);
      const int first_head = section * problem_.section_heads;
      const int within = index - first_head * row_blocks;
      const int heads = min(problem_.section_heads, all_heads() - first_head);
      row_block = row_blocks - 1 - within / heads;
      head = first_head + within % heads;
    } else {
      head = index / row_blocks;
      row_block = index - head * row_blocks;
    }
    Tile tile;
    tile.first_query = row_block * tile_queries();
    tile.batch = head / problem_.heads;
    tile.head = head - tile.batch * problem_.heads;
    int keys_seen = static_cast<int>(problem_.args.Sk);
    if constexpr (Config::causal)
      keys_seen += min(tile.first_query + tile_queries(), seq_len_q()) - seq_len_q();
    tile.key_blocks = max(ceil_div(keys_seen, Config::B_c), 1);
    return tile;
  }

  // This thread block's part of the `i`-th tile, 0 or 1, whose keys are split; the part may be
  // empty.
  __device__ __forceinline__ TilePart part(int i) const {
    const KeySplit& split = problem_.split;
    const int begin = blockIdx.x * split.share;  // in the row of all blocks
    const int end = min(begin + split.share, split.tiles * split.blocks);
    const int index = begin / split.blocks + i, first = index * split.blocks;
    if (max(begin, first) >= end) return {};
    const int number = 2 * blockIdx.x + i;
    TilePart part{(*this)[split.whole_tiles + index], max(begin - first, 0), number};
    part.key_blocks = min(end - first, split.blocks);
    return part;
  }

 private:
  __device__ int seq_len_q() const { return static_cast<int>(problem_.args.Sq); }
  __device__ int all_heads() const { return problem_.heads * static_cast<int>(problem_.args.B); }
  __device__ int tile_queries() const { return Config::n_warpgroups * problem_.rows.queries; }

  const ProblemOfArgs& problem_;
};

}  // namespace kernelmint::flash_forward::sm90a
