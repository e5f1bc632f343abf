// The query tile of a thread block, and each thread's part of the tile.
#pragma once

#include <cstdint>

#include "device_assert.cuh"
#include "integers.h"
#include "register_tile.cuh"

namespace kernelmint::flash_forward::sm80 {

// Blocks of threads of one head are neighbours, and so are heads that share keys and values; under
// a causal mask the longest rows start first. Each warp of a block owns B_r / n_warps of its rows,
// and each lane those that a RegisterTile gives it.
template <class Config>
struct Work {
  using Rows = RegisterTile<Config::B_r / Config::n_warps, 8>;

  int batch, head, kv_head;
  int first_row;       // the first of the block's B_r query rows
  int warp_row, lane;  // the first of the warp's rows, counted from first_row
  int seq_len_q, seq_len_k;
  int causal_shift;     // row i sees keys up to i + causal_shift (aligned bottom-right)
  int key_blocks;       // blocks that some row sees; the last may be partly out of range
  int unmasked_blocks;  // the first of them: seen whole by every row

  __device__ Work(const typename Config::Args& args, unsigned block, unsigned thread)
      : warp_row(thread / 32 * (Config::B_r / Config::n_warps)),
        lane(thread % 32),
        seq_len_q(static_cast<int>(args.Sq)),
        seq_len_k(static_cast<int>(args.Sk)),
        causal_shift(seq_len_k - seq_len_q) {
    const unsigned row_blocks = ceil_div<Config::B_r>(seq_len_q);
    const unsigned heads = static_cast<unsigned>(args.H);
    const unsigned batch_and_head = block / row_blocks;
    const unsigned row_block = block % row_blocks;
    first_row = (Config::causal ? row_blocks - 1 - row_block : row_block) * Config::B_r;
    batch = batch_and_head / heads;
    head = batch_and_head % heads;
    KERNELMINT_DEVICE_ASSERT(batch < args.B && args.H % args.Hk == 0);
    kv_head = head / (heads / static_cast<unsigned>(args.Hk));
    const int last_row = min(first_row + Config::B_r, seq_len_q) - 1;
    key_blocks = ceil_div<Config::B_c>(max(keys_seen(last_row), 0));
    unmasked_blocks = max(keys_seen(first_row), 0) / Config::B_c;
  }

  // How many keys query row `row` sees; none of them if it is not positive. Past the last row
  // the count may exceed the keys, and does not matter.
  __device__ int keys_seen(int row) const {
    return Config::causal ? row + 1 + causal_shift : seq_len_k;
  }

  // The lane's rows: `i` of them among the block's, and among all queries.
  __device__ int local_row(int i) const {
    return warp_row + Rows::row_of(i) + Rows::first_row(lane);
  }
  __device__ int query_row(int i) const { return first_row + local_row(i); }
};

}  // namespace kernelmint::flash_forward::sm80
