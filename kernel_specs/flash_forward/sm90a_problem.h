// What the kernel is launched with.
#pragma once

#include <cuda.h>

#include "flash_forward/sm90a_slab.h"

namespace kernelmint::flash_forward::sm90a {

// Thread blocks that are done take their next tile from here. Zero between kernels: the block that
// ends last leaves it so.
struct TileCounter {
  unsigned taken, blocks_done;
};

// A tensor [B, S, H, D]. Heads, or batch entries, that are one and the same in memory are one in
// the map, and their index counts nothing.
struct MappedTensor {
  CUtensorMap map;
  int head_step, batch_step;
};

template <class Arguments>
struct Problem {
  using Args = Arguments;

  Args args;
  MappedTensor q, o;     // [B, heads, Sq, rows.heads, D], in boxes of a slab by 64 columns
  MappedTensor k, v;     // [B, Hk, Sk, D], in boxes of B_c rows by 64 columns
  PackedRows rows;       // of Q and O
  int row_blocks;        // tiles of a head
  int heads;             // of a batch entry; here and below, heads that are packed count as one
  int heads_of_a_group;  // that share their keys
  int section_heads;     // whose tiles are handed out together
  TileCounter* counter;  // null: tiles are taken in a fixed order
};

}  // namespace kernelmint::flash_forward::sm90a
