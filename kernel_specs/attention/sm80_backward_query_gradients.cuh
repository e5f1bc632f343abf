// dQ in memory, in the order of the registers.
#pragma once

#include <cstdint>

#include "attention/sm80_backward_copy.cuh"
#include "attention/sm80_backward_shared_memory.cuh"
#include "ptx/atomic.cuh"
#include "register_tile.cuh"

namespace kernelmint::attention_backward::sm80 {

// The place of a warp's tile of dQ among the tiles of a block of queries.
template <class Config>
struct QueryGradientTile {
  using Parts = Shape<Config>;
  using Values = RegisterTile<Parts::kDqQueries, Parts::kDqColumns>;
  static constexpr int kFloats = Parts::kDqQueries * Parts::kDqColumns;

  __device__ static int first_query(int warp) { return warp % Config::dq_rows * Parts::kDqQueries; }
  __device__ static int first_column(int warp) {
    return warp / Config::dq_rows * Parts::kDqColumns;
  }

  // f(values, address) for each four of a lane's values and where they lie in memory.
  template <class F>
  __device__ __forceinline__ static void for_each(Values& values, float* tile, int lane,
                                                  const F& f) {
    float* const first = tile + lane * ptx::kQuadLaneStep;
    unroll<Values::kRowTiles>([&](int row) {
      unroll<Values::kColumnGroups>([&](int group) {
        f(values.accumulator(row, group), first + (row * Values::kColumnGroups + group) * 128);
      });
    });
  }
};

}  // namespace kernelmint::attention_backward::sm80
