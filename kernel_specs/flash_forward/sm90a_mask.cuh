// Which keys a query row sees.
#pragma once

#include "flash_forward/sm90a_tiles.cuh"
#include "flash_forward/softmax.cuh"
#include "register_tile.cuh"

namespace kernelmint::flash_forward::sm90a {

// All keys, or under a causal mask those up to its own position, aligned bottom-right. Also keys
// past the last one, which the last block may hold, are not seen.
template <class Config>
class Mask {
 public:
  // `lane_row` is the lane's first row among the tile's, `lane_column` its first column.
  __device__ Mask(const typename Config::Args& args, int lane_row, int lane_column)
      : seq_len_k_(static_cast<int>(args.Sk)),
        shift_(seq_len_k_ - static_cast<int>(args.Sq)),
        lane_row_(lane_row),
        lane_column_(lane_column) {}

  // The first block of keys that not all rows see whole.
  __device__ __forceinline__ int first_masked_block(const Tile& tile) const {
    return max(keys_seen(tile.first_row), 0) / Config::B_c;
  }

  // Scores of keys that a row does not see become -inf.
  template <class Scores>
  __device__ __forceinline__ void apply(Scores& scores, const Tile& tile, int block) const {
    const int seen = keys_seen(tile.first_row + lane_row_) - block * Config::B_c - lane_column_;
    unroll<Scores::kLaneRows>([&](int row) {
      const int limit = seen + (Config::causal ? Scores::row_of(row) : 0);
      unroll<Scores::kLaneColumns>([&](int column) {
        if (Scores::column_of(column) >= limit) scores(row, column) = -kInfinity;
      });
    });
  }

 private:
  // None where it is not positive. Past the last row it may exceed the keys, which does not matter.
  __device__ __forceinline__ int keys_seen(int row) const {
    return Config::causal ? row + 1 + shift_ : seq_len_k_;
  }

  int seq_len_k_, shift_, lane_row_, lane_column_;
};

}  // namespace kernelmint::flash_forward::sm90a
