// The keys that a query row sees.
#pragma once

#include <cstdint>

#include "attention/flash_forward/sm90a_slab.h"
#include "attention/flash_forward/sm90a_tile_scheduler.cuh"
#include "attention/softmax.cuh"
#include "integers.h"
#include "register_tile.cuh"

namespace kernelmint::flash_forward::sm90a {

using namespace attention;

// All keys, or under a causal mask those up to its own position, aligned bottom-right. Also keys
// past the last one, which the last block may hold, are not seen.
//
// A warpgroup's rows are a slab of a tile's, and its blocks of keys may be fewer than the tile's.
template <class Config>
class Mask {
  using ProblemOfArgs = Problem<typename Config::Args>;

 public:
  // `lane_row` is the lane's first row in the warpgroup's slab, `lane_column` its first column.
  __device__ Mask(const ProblemOfArgs& problem, int warpgroup, int lane_row, int lane_column)
      : rows_(problem.rows),
        seq_len_q_(static_cast<int>(problem.args.Sq)),
        seq_len_k_(static_cast<int>(problem.args.Sk)),
        slab_query_(warpgroup * rows_.queries),
        lane_row_(lane_row),
        lane_column_(lane_column) {}

  // Returns whether the slab lies past the last query.
  __device__ __forceinline__ bool is_outside(const Tile& tile) const {
    return tile.first_query + slab_query_ >= seq_len_q_;
  }

  // The first block of keys that not all rows of the slab see whole.
  __device__ __forceinline__ int first_masked_block(const Tile& tile) const {
    return max(keys_seen(tile.first_query + slab_query_), 0) / Config::B_c;
  }

  // The last block of keys to look at: the last that a row of the slab sees, but as no more may be
  // passed over than have come, none of the tile's last `stages` is before it.
  template <class AnyTile>
  __device__ __forceinline__ int last_block(const AnyTile& tile) const {
    if constexpr (!Config::causal) return tile.key_blocks - 1;
    const int seen = keys_seen(tile.first_query + slab_query_ + rows_.queries - 1);
    const int last = min(ceil_div(seen, Config::B_c), tile.key_blocks) - 1;
    return max(last, max(tile.key_blocks - Config::stages, tile.first_key_block));
  }

  // Scores of keys that a row does not see become -inf.
  template <class Scores>
  __device__ __forceinline__ void apply(Scores& scores, const Tile& tile, int block) const {
    const int first_query = tile.first_query + slab_query_;
    const int first_key = block * Config::B_c + lane_column_;
    unroll<Scores::kLaneRows>([&](int row) {
      const int query = first_query + rows_.query(lane_row_ + Scores::row_of(row));
      const int limit = keys_seen(query) - first_key;
      // A lane has two of every 8 columns. As bits of a word, eight of which become predicates at a
      // time, columns cost one instruction each instead of two.
      const int columns = max(limit, 0) / 8 * 2 + min(max(limit, 0) % 8, 2);
      unroll<ceil_div(Scores::kLaneColumns, 32)>([&](int word) {
        const int count = min(max(columns - 32 * word, 0), 32);
        const std::uint32_t seen_bits = count == 0 ? 0 : ~0u >> (32 - count);
        unroll<32>([&](int i) {
          const int column = 32 * word + i;
          if (column < Scores::kLaneColumns && (seen_bits >> i & 1) == 0)
            scores(row, column) = -kInfinity;
        });
      });
    });
  }

 private:
  // None if it is not positive. Past the last query it may exceed the keys, which does not
  // matter.
  __device__ __forceinline__ int keys_seen(int query) const {
    return Config::causal ? query + 1 + seq_len_k_ - seq_len_q_ : seq_len_k_;
  }

  const PackedRows rows_;
  int seq_len_q_, seq_len_k_;
  int slab_query_;  // the slab's first, in its tile
  int lane_row_, lane_column_;
};

}  // namespace kernelmint::flash_forward::sm90a
