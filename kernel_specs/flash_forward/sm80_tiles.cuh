// Tiles in shared memory: how they are laid out, copied in and out, and read as mma fragments.
#pragma once

#include <cstdint>

#include "ptx/cp_async.cuh"
#include "ptx/shared_memory.cuh"

namespace kernelmint::flash_forward::sm80 {

// One operand's share of a warp-wide m16n8k16: a 16x16 tile, as ldmatrix delivers it.
using Fragment = std::uint32_t[4];

// Rows of `kColumns` 16-bit elements in chunks of 16 bytes. Swizzled, chunk c of row r lies where
// chunk c ^ (r % 8) would: the eight rows that ldmatrix reads at one column, and the eight chunks
// of one row, then lie in different banks. Rows in tiles of 8 or 16 keep r % 8, so a row tile is
// always a constant number of bytes away.
template <int kColumns_, bool kSwizzled>
struct SharedLayout {
  static constexpr int kColumns = kColumns_;
  static constexpr int kRowBytes = 2 * kColumns;
  static constexpr int kChunks = kColumns / 8;

  __device__ static constexpr std::uint32_t offset(int row, int chunk) {
    return row * kRowBytes + (kSwizzled ? chunk ^ (row & 7) : chunk) * 16;
  }
};

// Where this lane's ldmatrix addresses lie. A 16x16 tile's address is a lane's part, which under
// the swizzle depends on the tile's column modulo 64 alone, plus a constant. So all address
// arithmetic is done here, once, and an ldmatrix in an unrolled loop takes register + immediate.
template <class Layout, bool kSwizzled>
struct FragmentAddresses {
  static constexpr int kParts = kSwizzled ? 4 : 1;
  std::uint32_t part[kParts];

  __device__ explicit FragmentAddresses(std::uint32_t tile) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kParts; ++i) part[i] = tile + Layout::offset(lane % 16, 2 * i + lane / 16);
  }

  // Of the tile at row 16 * `row_tile` and column 16 * `column_tile`.
  __device__ std::uint32_t operator()(int row_tile, int column_tile) const {
    return part[column_tile % kParts] + row_tile * 16 * Layout::kRowBytes +
           column_tile / kParts * kParts * 32;
  }
};

// Copies tiles of `kRows` rows from global to shared memory, every thread of the block the same
// chunk of every kPassRows-th row: neighbouring threads read neighbouring chunks.
template <class Config, int kRows>
class TileCopy {
  using Element = typename Config::dtype;
  using Layout = SharedLayout<Config::d_head, Config::swizzled>;
  static constexpr int kPassRows = Config::threads / Layout::kChunks;
  static constexpr int kPasses = kRows / kPassRows;
  static_assert(kRows % kPassRows == 0, "every pass copies whole rows, each thread one chunk");
  static_assert(!Config::swizzled || (kPassRows & (kPassRows - 1)) == 0);

 public:
  // `tile` is the shared tile, `source` row 0 of the tensor, `first_row` the row copied first.
  __device__ TileCopy(std::uint32_t tile, const Element* source, std::int64_t row_stride,
                      int first_row)
      : row_(threadIdx.x / Layout::kChunks),
        destination_(tile + Layout::offset(row_, threadIdx.x % Layout::kChunks)),
        source_(source + (first_row + row_) * row_stride + threadIdx.x % Layout::kChunks * 8),
        pass_stride_(kPassRows * row_stride),
        tile_stride_(kRows * row_stride) {}

  // Moves on to the tile before this one.
  __device__ void step_back() { source_ -= tile_stride_; }

  // Starts copying the tile; with `kBounded`, rows from `rows` on become zero. Through registers
  // (not async_copy) the copy is complete on return.
  template <bool kBounded>
  __device__ void request(int rows = kRows) const {
    if constexpr (Config::async_copy) {
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        const Element* source = source_ + pass * pass_stride_;
        if constexpr (kBounded)
          ptx::cp_async_16_or_zero(destination(pass), source, row_ + pass * kPassRows < rows);
        else
          ptx::cp_async_16(destination(pass), source);
      }
    } else {
      uint4 chunk[kPasses];
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        chunk[pass] = uint4{0, 0, 0, 0};
        if (!kBounded || row_ + pass * kPassRows < rows)
          chunk[pass] = *reinterpret_cast<const uint4*>(source_ + pass * pass_stride_);
      }
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) ptx::store_shared(destination(pass), chunk[pass]);
    }
  }

 private:
  // A pass of fewer than 8 rows changes row % 8, and with it the swizzle: by a constant, since
  // kPassRows is a power of two and so adding its multiples to row_ carries nothing.
  __device__ std::uint32_t destination(int pass) const {
    const int row = pass * kPassRows;
    const std::uint32_t flip = Config::swizzled ? (row & 7) * 16 : 0;
    return (destination_ ^ flip) + row * Layout::kRowBytes;
  }

  int row_;
  std::uint32_t destination_;
  const Element* source_;
  std::int64_t pass_stride_, tile_stride_;
};

// All requested tiles are in shared memory, and every thread of the block is done with what it did
// before.
template <class Config>
__device__ __forceinline__ void wait_for_tiles() {
  if constexpr (Config::async_copy) ptx::cp_async_wait_all();
  __syncthreads();
}

// The fragments of one operand along the reduction, slice by slice of 16: `Load` reads slice i's
// fragments into a Slice. Holds `kPerLoad` slices at a time (0: all of them) and, double buffered,
// has those that come next on the way. Meant for fully unrolled loops: every index is a constant.
template <class Slice, int kSlices, int kPerLoad, bool kDoubleBuffered>
class FragmentStream {
 public:
  static constexpr int kHeld = kPerLoad == 0 ? kSlices : kPerLoad;
  static constexpr bool kResident = kHeld == kSlices;
  static constexpr int kBuffers = kDoubleBuffered && !kResident ? 2 : 1;
  static_assert(kSlices % kHeld == 0);

  // Before slice 0 is used.
  template <class Load>
  __device__ __forceinline__ void start(const Load& load) {
    fill(0, load);
  }

  // Before slice `slice` is used.
  template <class Load>
  __device__ __forceinline__ void advance(int slice, const Load& load) {
    if (slice % kHeld != 0) return;
    if constexpr (kBuffers == 2) {
      if (slice + kHeld < kSlices) fill(slice + kHeld, load);
    } else {
      if (slice > 0) fill(slice, load);
    }
  }

  __device__ __forceinline__ Slice& operator[](int slice) {
    return slices_[slice / kHeld % kBuffers][slice % kHeld];
  }

 private:
  template <class Load>
  __device__ __forceinline__ void fill(int first, const Load& load) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) load((*this)[first + i], first + i);
  }

  Slice slices_[kBuffers][kHeld];
};

}  // namespace kernelmint::flash_forward::sm80
