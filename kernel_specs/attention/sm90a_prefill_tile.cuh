// The producer's announcements of its tiles, and the keys that a warpgroup's slab of a tile sees.
#pragma once

#include <cstdint>

#include "attention/prefill_tile.cuh"
#include "attention/sm90a_shared_memory.cuh"
#include "attention/sm90a_tensor_maps.cuh"
#include "attention/sm90a_tile_counter.cuh"
#include "attention/softmax.cuh"
#include "integers.h"
#include "ptx/shared_memory.cuh"
#include "register_tile.cuh"

namespace kernelmint::flash_prefill::sm90a {

using namespace attention;
using namespace attention::sm90a;

template <class Arguments>
struct Problem {
  using Args = Arguments;

  Args args;
  MappedTensor q;        // [Nq, H, Tq, D], in boxes of a slab by 64 columns
  MappedTensor k, v;     // [Nk, Hk, Tk, D], in boxes of `box_rows` rows by 64 columns
  int box_rows;          // a block of keys, or its part of one page
  TileCounter* counter;  // null: tiles are taken in a fixed order
};

// A tile of one head, as it lies in shared memory: four times 16 bytes. Its blocks of keys, B_c
// each, are counted from the sequence's first key on and walked from the last to the first.
struct Announced {
  int key_blocks, first_key_block;  // the walk ends at key_blocks - 1; 0: no more tiles
  int head, sequence;
  int entry, first_row, first_query, rows;
  int queries, begin, end, key_entry;
  int first_key, kv_head, _[2];
};

// A slot is written again when all consumers are done with it: a consumer that stores a tile's
// output has given back the buffers that later tiles need, so that two more may be announced.
template <class Config>
using SharedMemory =
    attention::sm90a::SharedMemory<Config, 0, sizeof(Announced), Config::q_buffers + 3>;

__device__ __forceinline__ void store_tile(std::uint32_t slot, const Announced& tile) {
  unroll<4>(
      [&](int i) { ptx::store_shared(slot + 16 * i, reinterpret_cast<const uint4*>(&tile)[i]); });
}

// The announced words, 16 bytes `kCount` times, from the `kFirst`-th on; the rest is 0.
template <int kFirst, int kCount>
__device__ __forceinline__ Announced load_tile(std::uint32_t slot) {
  Announced tile{};
  unroll<kCount>([&](int i) {
    reinterpret_cast<uint4*>(&tile)[kFirst + i] = ptx::load_shared_16(slot + 16 * (kFirst + i));
  });
  return tile;
}

// The keys that queries of a sequence see.
class Seen {
 public:
  static constexpr int kFarthest = 1 << 30;

  template <class Args>
  __device__ Seen(const Args& args, const Announced& tile)
      : begin_(tile.begin),
        end_(tile.end),
        own_(tile.end - tile.queries),
        left_(args.window_left < 0 ? kFarthest : min(args.window_left, kFarthest)),
        right_(args.window_right < 0 ? kFarthest : min(args.window_right, kFarthest)) {}

  __device__ __forceinline__ int own_key(int query) const { return query + own_; }
  __device__ __forceinline__ int first(int query) const {
    return max(own_key(query) - left_, begin_);
  }
  __device__ __forceinline__ int behind(int query) const {
    return min(own_key(query) + right_ + 1, end_);
  }

 private:
  int begin_, end_, own_, left_, right_;
};

}  // namespace kernelmint::flash_prefill::sm90a
