// Rows between global and shared memory, by all threads of a block.
#pragma once

#include <cstdint>

#include "attention/sm80_tiles.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/special_registers.cuh"
#include "register_tile.cuh"

namespace kernelmint::attention_backward::sm80 {

using namespace attention::sm80;

// Each thread has the same chunks of every kPassRows-th row: neighbours among as many threads as
// chunks change places in a row.
template <class Config, class Layout, int kRows>
class RowCopy {
  static constexpr int kLanes = Layout::kPeriod;
  static constexpr int kPassRows = Config::threads / kLanes;
  static_assert(kRows % kPassRows == 0 && kPassRows % 8 == 0);

 public:
  // Requests rows of a tensor from the `first` on; what is not in `part` becomes zeros.
  template <class Element, class Part>
  __device__ __forceinline__ static void request(std::uint32_t tile, const Element* rows,
                                                 std::int64_t row_stride, int first, Part part) {
    const Place place;
    const Element* const from = rows + (first + place.row) * row_stride + place.chunk * 8;
    for_each(place, tile, [&](std::uint32_t to, int row, int column) {
      ptx::cp_async_16_or_zero(to, from + row * row_stride + column,
                               part.has(first + place.row + row, place.chunk * 8 + column));
    });
  }

  // Stores rows of shared memory to a tensor's rows from the `first` on, those in `part`.
  template <class Element, class Part>
  __device__ __forceinline__ static void store(std::uint32_t tile, Element* rows,
                                               std::int64_t row_stride, int first, Part part) {
    const Place place;
    Element* const to = rows + (first + place.row) * row_stride + place.chunk * 8;
    for_each(place, tile, [&](std::uint32_t from, int row, int column) {
      if (part.has(first + place.row + row, place.chunk * 8 + column))
        *reinterpret_cast<uint4*>(to + row * row_stride + column) = ptx::load_shared_16(from);
    });
  }

 private:
  struct Place {
    int row, chunk;
    __device__ __forceinline__ Place() {
      const auto thread = static_cast<int>(ptx::reread_thread_index());
      row = thread / kLanes;
      chunk = thread % kLanes;
    }
  };

  // f(address, row, column) for each chunk of the thread, counted from its first.
  template <class F>
  __device__ __forceinline__ static void for_each(const Place& place, std::uint32_t tile,
                                                  const F& f) {
    const std::uint32_t first = tile + Layout::offset(place.row, place.chunk);
    unroll<kRows / kPassRows>([&](int pass) {
      unroll<Layout::kChunks / kLanes>([&](int part) {
        f(first + pass * kPassRows * Layout::kRowBytes + part * kLanes * 16, pass * kPassRows,
          part * kLanes * 8);
      });
    });
  }
};

// Rounds a warp's accumulators to a tile of shared memory, whose row `first_row` and column
// `first_column` are their first ones.
template <class Element, class Layout, int kRows, int kColumns>
__device__ __forceinline__ void store_rounded(std::uint32_t tile, int first_row, int first_column,
                                              const RegisterTile<kRows, kColumns>& values) {
  using Tile = RegisterTile<kRows, kColumns>;
  const int lane = static_cast<int>(ptx::reread_thread_index()) % 32;
  unroll<Tile::kLaneRows>([&](int row) {
    unroll<Tile::kColumnGroups>([&](int group) {
      ptx::store_shared(tile +
                            Layout::offset(first_row + Tile::first_row(lane) + Tile::row_of(row),
                                           first_column / 8 + group) +
                            2 * Tile::first_column(lane),
                        values.template packed_pair<Element>(row, group));
    });
  });
}

}  // namespace kernelmint::attention_backward::sm80
