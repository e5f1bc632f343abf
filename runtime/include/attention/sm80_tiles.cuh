// Tiles in shared memory: how they are laid out, copied in and out, and read as mma fragments.
#pragma once

#include <cstdint>

#include "device_assert.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/mma.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/special_registers.cuh"
#include "register_tile.cuh"

namespace kernelmint::attention::sm80 {

// One operand's share of a warp-wide m16n8k16: a 16x16 tile, as ldmatrix delivers it.
using Fragment = std::uint32_t[4];

// An operand at 16 places of the reduction: `kTiles` fragments, 16 rows of the left operand or 16
// columns of the right one each.
template <int kTiles>
struct Slice {
  Fragment tiles[kTiles];
};

// sum += left * right.
template <class Element, class Sum, int kRowTiles, int kColumnTiles>
__device__ __forceinline__ void multiply_add(Sum& sum, const Slice<kRowTiles>& left,
                                             const Slice<kColumnTiles>& right) {
  unroll<kColumnTiles>([&](int column_tile) {
    const Fragment& b = right.tiles[column_tile];  // two times 8 columns
    unroll<kRowTiles>([&](int row_tile) {
      const Fragment& a = left.tiles[row_tile];
      ptx::mma_m16n8k16<Element>(sum.accumulator(row_tile, 2 * column_tile), a, b[0], b[1]);
      ptx::mma_m16n8k16<Element>(sum.accumulator(row_tile, 2 * column_tile + 1), a, b[2], b[3]);
    });
  });
}

// Rows of `kColumns` 16-bit elements in chunks of 16 bytes. Swizzled, chunk c of row r lies where
// chunk c ^ flip(r) would: the eight rows that ldmatrix reads at one column, and the eight chunks
// of one row, then lie in different banks. Rows in tiles of 8 or 16 keep their flip, so a row tile
// is always a constant number of bytes away.
template <int kColumns_, bool kSwizzled_>
struct SharedLayout {
  static constexpr int kColumns = kColumns_;
  static constexpr bool kSwizzled = kSwizzled_;
  static constexpr int kRowBytes = 2 * kColumns;
  static constexpr int kChunks = kColumns / 8;
  // The number of neighbouring chunks that change places: the chunks of 128 bytes, or of 64 if two
  // rows begin half of the banks apart.
  static constexpr int kPeriod = kChunks % 8 == 0 ? 8 : 4;
  static_assert(!kSwizzled || kChunks % kPeriod == 0, "rows are multiples of 64 bytes");

  __device__ static constexpr int flip(int row) {
    return !kSwizzled ? 0 : kPeriod == 8 ? row & 7 : row >> 1 & 3;
  }
  __device__ static constexpr std::uint32_t offset(int row, int chunk) {
    return row * kRowBytes + (chunk ^ flip(row)) * 16;
  }
};

// How a 16x16 tile of shared memory becomes an operand: in which order ldmatrix takes its 8x8
// quarters, so that the registers of the operand follow each other, and which way round.
enum class Operand {
  kLeft,             // rows are rows of a: Q. Down first: top left, bottom left, top right, ...
  kLeftTransposed,   // rows are columns of a. Across first
  kRight,            // rows are columns of b: K. Across first
  kRightTransposed,  // rows are rows of b: V. Down first
};

// Where this lane's ldmatrix addresses lie. A 16x16 tile's address is a lane's part, which under
// the swizzle depends only on the tile's column modulo 64 (or 32), plus a constant. The parts are
// made from one register when a product starts: an ldmatrix within takes register + immediate, and
// only one product's parts take registers at a time.
template <class Layout, Operand kOperand>
class FragmentAddresses {
  static constexpr bool kDown = kOperand == Operand::kLeft || kOperand == Operand::kRightTransposed;
  static constexpr bool kTransposed =
      kOperand == Operand::kLeftTransposed || kOperand == Operand::kRightTransposed;

 public:
  // The addresses of the tiles from row 0 and the `column_tile`-th 16 columns on; of more than half
  // a period, if that begins a period or its second half.
  explicit __device__ FragmentAddresses(std::uint32_t tile, int column_tile = 0,
                                        unsigned thread = threadIdx.x) {
    const int lane = thread % 32;
    const int first = lane / 8 % 2, second = lane / 16;
    const int start = column_tile & (Parts::kCount - 1);
    base_ = tile + (column_tile - start) * 32 +
            (Layout::offset(lane % 8 + 8 * (kDown ? first : second), kDown ? second : first) ^
             (start * 32));
    carry_ = start * 64;
    KERNELMINT_DEVICE_ASSERT(tile % 128 == 0);  // else base ^ (i * 32) is another tile's address
  }

  struct Parts {
    static constexpr int kCount = Layout::kSwizzled ? Layout::kPeriod / 2 : 1;
    std::uint32_t part[kCount];

    // Slice `i` along the reduction, which is along the rows of a transposed operand.
    template <int kTiles>
    __device__ __forceinline__ void load(Slice<kTiles>& slice, int i) const {
      unroll<kTiles>([&](int tile) {
        if constexpr (kTransposed)
          ptx::ldmatrix_x4_transposed(slice.tiles[tile], address(i, tile));
        else
          ptx::ldmatrix_x4(slice.tiles[tile], address(tile, i));
      });
    }

   private:
    // The address of the tile at row 16 * `row_tile` and column 16 * `column_tile`.
    __device__ std::uint32_t address(int row_tile, int column_tile) const {
      return part[column_tile % kCount] + row_tile * 16 * Layout::kRowBytes +
             column_tile / kCount * kCount * 32;
    }
  };

  // With everything `bytes` further, a multiple of 128.
  __device__ __forceinline__ Parts parts(std::uint32_t bytes = 0) const {
    const std::uint32_t base = ptx::recomputed(base_ + bytes);
    Parts parts;
    unroll<Parts::kCount>(
        [&](int i) { parts.part[i] = (base ^ (i * 32)) + (i & Parts::kCount / 2 ? carry_ : 0); });
    return parts;
  }

 private:
  std::uint32_t base_;   // the first tile's address
  std::uint32_t carry_;  // if that begins the second half of a period, the next one's first half
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
  // `tile` is the shared tile, `rows` row 0 of a head, `first_row` the row copied first.
  __device__ TileCopy(std::uint32_t tile, const Element* rows, std::int64_t row_stride,
                      int first_row)
      : tile_(tile),
        source_(rows + (first_row + threadIdx.x / Layout::kChunks) * row_stride +
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
      unroll<kPasses>([&](int pass) {
        const Element* source = source_ + pass * kPassRows * row_stride_;
        if constexpr (kBounded)
          ptx::cp_async_16_or_zero(destination(first, pass), source, row + pass * kPassRows < rows);
        else
          ptx::cp_async_16(destination(first, pass), source);
      });
    } else {
      uint4 chunk[kPasses];
      unroll<kPasses>([&](int pass) {
        chunk[pass] = uint4{0, 0, 0, 0};
        if (!kBounded || row + pass * kPassRows < rows)
          chunk[pass] = *reinterpret_cast<const uint4*>(source_ + pass * kPassRows * row_stride_);
      });
      unroll<kPasses>([&](int pass) { ptx::store_shared(destination(first, pass), chunk[pass]); });
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

// All requested tiles are in shared memory, and every thread of the block has ended its work before
// them.
template <class Config>
__device__ __forceinline__ void wait_for_tiles() {
  if constexpr (Config::async_copy) ptx::cp_async_wait_all();
  __syncthreads();
}

// The fragments of one operand along the reduction, slice by slice of 16, as an `Addresses::Parts`
// loads them. Holds `kPerLoad` slices at a time (0: all of them) and, double buffered, has the next
// ones on the way. Meant for fully unrolled loops: every index is a constant.
template <int kTiles, int kSlices, int kPerLoad, bool kDoubleBuffered>
class FragmentStream {
 public:
  static constexpr int kHeld = kPerLoad == 0 ? kSlices : kPerLoad;
  static constexpr bool kResident = kHeld == kSlices;
  static constexpr int kBuffers = kDoubleBuffered && !kResident ? 2 : 1;
  static_assert(kSlices % kHeld == 0);

  // Before slice 0 is used.
  template <class Parts>
  __device__ __forceinline__ void start(const Parts& source) {
    fill(0, source);
  }

  // Before slice `slice` is used. `product` is a result of the slice before: loads into a buffer
  // wait for the products that used it.
  template <class Parts>
  __device__ __forceinline__ void advance(int slice, const Parts& source, float product) {
    if (slice % kHeld != 0) return;
    if (slice > 0) ptx::order_loads_after(product, source.part[0]);
    if constexpr (kBuffers == 2) {
      if (slice + kHeld < kSlices) fill(slice + kHeld, source);
    } else {
      if (slice > 0) fill(slice, source);
    }
  }

  __device__ __forceinline__ Slice<kTiles>& operator[](int slice) {
    return slices_[slice / kHeld % kBuffers][slice % kHeld];
  }

 private:
  template <class Parts>
  __device__ __forceinline__ void fill(int first, const Parts& source) {
    unroll<kHeld>([&](int i) { source.load((*this)[first + i], first + i); });
  }

  Slice<kTiles> slices_[kBuffers][kHeld];
};

}  // namespace kernelmint::attention::sm80
