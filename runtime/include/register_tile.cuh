// A tile in the registers of one warp, as the tensor cores accumulate it.
#pragma once

#include <cstdint>

#include "ptx/math.cuh"

namespace kernelmint {

// f(0), ..., f(kCount - 1), unrolled: an index of registers must be a constant.
template <int kCount, class F>
__device__ __forceinline__ void unroll(const F& f) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) f(i);
}

// Transposes the values of the four lanes that share a row: lane i gets the i-th value of each.
__device__ __forceinline__ void transpose_quad(std::uint32_t (&values)[4]) {
  unroll<2>([&](int level) {
    const int distance = 1 << level;
    const bool upper = threadIdx.x & distance;
    unroll<2>([&](int i) {
      const int low = level == 0 ? 2 * i : i, high = low + distance;
      const std::uint32_t received =
          __shfl_xor_sync(~0u, upper ? values[low] : values[high], distance);
      if (upper)
        values[low] = received;
      else
        values[high] = received;
    });
  });
}

// Rows x Columns floats of one warp, where mma.sync m16n8 and wgmma m64nN leave their results (PTX
// ISA, "Matrix Fragments for mma.m16n8k16" and "Register Fragments for wgmma.mma_async.m64nNk16",
// 16 of whose 64 rows a warp has). Of every 16 rows and 8 columns, lane l holds rows l/4 and l/4 +
// 8 at columns 2 (l%4) and 2 (l%4) + 1.
//
// So a lane has its own small matrix, kLaneRows by kLaneColumns. `row` and `column` count in it:
// lane l's (0, 0) is the tile's (first_row(l), first_column(l)), and its (row, column) lies
// row_of(row) rows and column_of(column) columns from there, the same for every lane.
template <int Rows, int Columns>
class RegisterTile {
  static_assert(Rows % 16 == 0 && Columns % 8 == 0, "whole accumulators of 16 rows, 8 columns");

 public:
  static constexpr int kRows = Rows, kColumns = Columns;
  static constexpr int kRowTiles = Rows / 16;
  static constexpr int kColumnGroups = Columns / 8;
  static constexpr int kLaneRows = 2 * kRowTiles;
  static constexpr int kLaneColumns = 2 * kColumnGroups;

  __device__ static constexpr int first_row(int lane) { return lane / 4; }
  __device__ static constexpr int first_column(int lane) { return lane % 4 * 2; }
  __device__ static constexpr int row_of(int row) { return row * 8; }
  __device__ static constexpr int column_of(int column) { return column / 2 * 8 + column % 2; }

  __device__ __forceinline__ float& operator()(int row, int column) {
    return values_[row / 2][index(row, column)];
  }
  __device__ __forceinline__ float operator()(int row, int column) const {
    return values_[row / 2][index(row, column)];
  }

  // Calls f(value) for every value of the lane, or of one of its rows, in the columns' order there.
  template <class F>
  __device__ __forceinline__ void for_each(const F& f) {
    unroll<kLaneRows>([&](int row) { for_each(row, f); });
  }
  template <class F>
  __device__ __forceinline__ void for_each(int row, const F& f) {
    unroll<kLaneColumns>([&](int column) { f((*this)(row, column)); });
  }

  __device__ __forceinline__ void zero() {
    for_each([](float& value) { value = 0; });
  }

  // The accumulator of a product: mma.sync m16n8 to 16 rows and 8 columns, ...
  __device__ __forceinline__ float (&accumulator(int row_tile, int column_group))[4] {
    return reinterpret_cast<float (&)[4]>(values_[row_tile][4 * column_group]);
  }
  // ... wgmma m64nN to 16 rows and all columns.
  __device__ __forceinline__ float (&accumulator(int row_tile))
      [Columns / 2] { return values_[row_tile]; }

  // The two neighbours that a lane has of 8 columns, rounded to a 16-bit type, the left one in the
  // lower half.
  template <class Element>
  __device__ __forceinline__ std::uint32_t packed_pair(int row, int column_group) const {
    return ptx::pack<Element>((*this)(row, 2 * column_group), (*this)(row, 2 * column_group + 1));
  }

  // 16 rows and 16 columns, rounded, as the left operand of the next product: of mma.sync m16n8k16,
  // or of a wgmma with A in registers. `slice` counts 16 columns.
  template <class Element>
  __device__ __forceinline__ void pack_operand(int row_tile, int slice,
                                               std::uint32_t (&fragment)[4]) const {
    unroll<4>([&](int i) {
      fragment[i] = packed_pair<Element>(2 * row_tile + i % 2, 2 * slice + i / 2);
    });
  }

 private:
  __device__ static constexpr int index(int row, int column) {
    return column / 2 * 4 + row % 2 * 2 + column % 2;
  }

  float values_[kRowTiles][Columns / 2];
};

}  // namespace kernelmint
