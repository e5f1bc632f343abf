// The producer's announcements of its tiles, in shared memory.
#pragma once

#include <cstdint>

#include "attention/flash_forward/sm90a_slab.h"
#include "attention/flash_forward/sm90a_tile_scheduler.cuh"
#include "attention/sm90a_shared_memory.cuh"
#include "ptx/shared_memory.cuh"

namespace kernelmint::flash_forward::sm90a {

using namespace attention::sm90a;

static_assert(PackedRows::kSlabRows == kSlabRows);

// A slot is written again when all consumers are done with the tile before.
template <class Config>
using SharedMemory =
    attention::sm90a::SharedMemory<Config, Config::overlaps_tiles ? Config::n_warpgroups : 0, 32,
                                   Config::q_buffers + 1>;

__device__ __forceinline__ void store_tile(std::uint32_t slot, const Tile& tile) {
  ptx::store_shared(
      slot, uint4{static_cast<unsigned>(tile.first_query), static_cast<unsigned>(tile.head),
                  static_cast<unsigned>(tile.batch), static_cast<unsigned>(tile.key_blocks)});
}
__device__ __forceinline__ void store_tile(std::uint32_t slot, const TilePart& part) {
  store_tile(slot, static_cast<const Tile&>(part));
  ptx::store_shared(slot + 16, uint4{static_cast<unsigned>(part.first_key_block),
                                     static_cast<unsigned>(part.index), 0, 0});
}
__device__ __forceinline__ void load_tile(std::uint32_t slot, Tile& tile) {
  const uint4 values = ptx::load_shared_16(slot);
  tile = {static_cast<int>(values.x), static_cast<int>(values.y), static_cast<int>(values.z),
          static_cast<int>(values.w)};
}
__device__ __forceinline__ void load_tile(std::uint32_t slot, TilePart& part) {
  load_tile(slot, static_cast<Tile&>(part));
  const uint4 values = ptx::load_shared_16(slot + 16);
  part.first_key_block = static_cast<int>(values.x);
  part.index = static_cast<int>(values.y);
}

}  // namespace kernelmint::flash_forward::sm90a
