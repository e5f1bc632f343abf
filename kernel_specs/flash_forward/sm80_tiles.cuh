// Tiles in shared memory: how they are laid out, copied in and out, and read as mma fragments.
#pragma once

#include <cstdint>

#include "device_assert.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/special_registers.cuh"

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

// In which order ldmatrix takes the four 8x8 quarters of a 16x16 tile, so that the registers of an
// mma's operand follow each other.
enum class Quarters {
  kDown,    // top left, bottom left, top right, bottom right: Q as a; V, transposed, as two b
  kAcross,  // top left, top right, bottom left, bottom right: K as two b
};

// Where this lane's ldmatrix addresses lie. A 16x16 tile's address is a lane's part, which under
// the swizzle depends on the tile's column modulo 64 alone, plus a constant. The parts are made
// from one register when a product starts: an ldmatrix within takes register + immediate, and only
// one product's parts take registers at a time.
template <class Layout, bool kSwizzled, Quarters kOrder>
class FragmentAddresses {
 public:
  __device__ explicit FragmentAddresses(std::uint32_t tile) {
    const int lane = threadIdx.x % 32;
    const int first = lane / 8 % 2, second = lane / 16;
    const int row = lane % 8 + 8 * (kOrder == Quarters::kDown ? first : second);
    base_ = tile + Layout::offset(row, kOrder == Quarters::kDown ? second : first);
    KERNELMINT_DEVICE_ASSERT(tile % 128 == 0);  // else base ^ (i * 32) is another tile's address
  }

  struct Parts {
    static constexpr int kCount = kSwizzled ? 4 : 1;
    std::uint32_t part[kCount];

    // Of the tile at row 16 * `row_tile` and column 16 * `column_tile`.
    __device__ std::uint32_t operator()(int row_tile, int column_tile) const {
      return part[column_tile % kCount] + row_tile * 16 * Layout::kRowBytes +
             column_tile / kCount * kCount * 32;
    }
  };

  __device__ __forceinline__ Parts parts() const {
    const std::uint32_t base = ptx::recomputed(base_);
    Parts parts;
#pragma unroll
    for (int i = 0; i < Parts::kCount; ++i) parts.part[i] = base ^ (i * 32);
    return parts;
  }

 private:
  std::uint32_t base_;  // of the tile at row 0 and column 0
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
  static_assert((kPassRows & (kPassRows - 1)) == 0, "see destination");

 public:
  // `tile` is the shared tile, `tensor` row 0 of the tensor, `first_row` the row copied first.
  __device__ TileCopy(std::uint32_t tile, const Element* tensor, std::int64_t row_stride,
                      int first_row)
      : tile_(tile),
        source_(tensor + (first_row + threadIdx.x / Layout::kChunks) * row_stride +
                threadIdx.x % Layout::kChunks * 8),
        row_stride_(row_stride) {
    KERNELMINT_DEVICE_ASSERT(reinterpret_cast<std::uintptr_t>(source_) % 16 == 0);
    KERNELMINT_DEVICE_ASSERT(row_stride * static_cast<int>(sizeof(Element)) % 16 == 0);
  }

  // Moves on to the tile before this one.
  __device__ void step_back() { source_ -= kRows * row_stride_; }

  // Starts copying the tile; with `kBounded`, rows from `rows` on become zero. Through registers
  // (not async_copy) the copy is complete on return.
  template <bool kBounded>
  __device__ __forceinline__ void request(int rows = kRows) const {
    const unsigned thread =
        ptx::reread_thread_index();  // cheaper than registers that hold its place
    const int row = thread / Layout::kChunks;
    const std::uint32_t first = tile_ + Layout::offset(row, thread % Layout::kChunks);
    if constexpr (Config::async_copy) {
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        const Element* source = source_ + pass * kPassRows * row_stride_;
        if constexpr (kBounded)
          ptx::cp_async_16_or_zero(destination(first, pass), source, row + pass * kPassRows < rows);
        else
          ptx::cp_async_16(destination(first, pass), source);
      }
    } else {
      uint4 chunk[kPasses];
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        chunk[pass] = uint4{0, 0, 0, 0};
        if (!kBounded || row + pass * kPassRows < rows)
          chunk[pass] = *reinterpret_cast<const uint4*>(source_ + pass * kPassRows * row_stride_);
      }
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass)
        ptx::store_shared(destination(first, pass), chunk[pass]);
    }
  }

 private:
  // `first` is where the thread's chunk of the first pass goes. Passes of fewer than 8 rows change
  // row % 8, and with it the swizzle: by a constant, since adding multiples of a power of two,
  // kPassRows, to a lesser row carries nothing.
  __device__ static std::uint32_t destination(std::uint32_t first, int pass) {
    const int rows = pass * kPassRows;
    const std::uint32_t flip = Config::swizzled ? (rows & 7) * 16 : 0;
    return (first ^ flip) + rows * Layout::kRowBytes;
  }

  std::uint32_t tile_;
  const Element* source_;
  std::int64_t row_stride_;
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

  // Before slice `slice` is used. `product` is a result of the slice before, `address` a place
  // that is loaded from: loads into a buffer wait for the products that used it.
  template <class Load>
  __device__ __forceinline__ void advance(int slice, const Load& load, float product,
                                          std::uint32_t address) {
    if (slice % kHeld != 0) return;
    if (slice > 0) ptx::order_loads_after(product, address);
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
