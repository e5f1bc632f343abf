// What the kernel is launched with.
#pragma once

#include <cuda.h>

namespace kernelmint::flash_forward::sm90a {

// Thread blocks that are done take their next tile from here. Zero between kernels: the block that
// ends last leaves it so.
struct TileCounter {
  unsigned taken, blocks_done;
};

// A tensor [B, S, H, D]. Heads, or batch entries, that are one and the same in memory are one in
// the map, and their index counts nothing.
struct MappedTensor {
  CUtensorMap map;  // boxes of 64 columns
  int head_step, batch_step;
};

template <class Arguments>
struct Problem {
  using Args = Arguments;

  Args args;
  MappedTensor q, k, v, o;  // boxes of 64 rows of q and o, of B_c of k and v
  TileCounter* counter;     // null: tiles are taken in a fixed order
  int section_heads;        // heads whose tiles are handed out together
};

}  // namespace kernelmint::flash_forward::sm90a
