// The problem that the kernel is launched with.
#pragma once

#include <vector_types.h>

#include "attention/flash_forward/sm90a_slab.h"
#include "attention/sm90a_tensor_maps.cuh"
#include "attention/sm90a_tile_counter.cuh"

namespace kernelmint::flash_forward::sm90a {

using namespace attention::sm90a;

// The split of some tiles' keys between thread blocks, so that no block waits long for the last.
// After the first `whole_tiles` in the order come `tiles` whose blocks of keys, `blocks` each, lie
// in one row; each thread block in turn takes `share` of the row: the end of a tile and perhaps the
// beginning of the next. The result of such a part is merged with the other parts of its tile.
struct KeySplit {
  int whole_tiles;
  int tiles, blocks, share;  // a share is shorter than a tile
  float4* parts;             // two of each thread block
};

template <class Arguments>
struct Problem {
  using Args = Arguments;

  Args args;
  MappedTensor q, o;     // [B, heads, Sq, rows.heads, D], in boxes of a slab by 64 columns
  MappedTensor k, v;     // [B, Hk, Sk, D], in boxes of B_c rows by 64 columns
  PackedRows rows;       // rows of Q and O
  int row_blocks;        // tiles of a head
  int heads;             // a batch entry's; here and below, heads that are packed count as one
  int heads_of_a_group;  // heads that share their keys
  int section_heads;     // whose tiles are handed out together
  TileCounter* counter;  // null: tiles are taken in a fixed order
  KeySplit split;
};

// The factor on the absolute scores. With 0 a masked score, -inf, must stay -inf.
template <class Arguments>
__device__ __forceinline__ float softmax_scale(const Arguments& args) {
  return fmaxf(fabsf(args.scale), 1e-30f);
}

}  // namespace kernelmint::flash_forward::sm90a
