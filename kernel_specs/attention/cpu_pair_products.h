// Products of bf16 matrices, added up in f32, by instructions that multiply pairs of neighbours:
// AMX tiles, or AVX512-BF16's dot products.
#pragma once

#include <cstdint>

#include "attention/cpu_tile_products.h"
#include "cpu_vector.h"

namespace kernelmint::attention_backward {
inline namespace KERNELMINT_ISA {

using namespace kernelmint::attention;

#if defined(KERNELMINT_AVX512_VECTORS)
#define KERNELMINT_PAIR_PRODUCTS 1

// Sixteen columns of a right operand, two rows of it in each dword.
using PairRow = std::uint32_t[16];

#if defined(KERNELMINT_AMX_TILES)
#define KERNELMINT_PAIRS
inline constexpr int kPairRows = kTileDepth;  // rows of a right operand are taken so many at a time

inline bool has_pair_products() { return true; }
KERNELMINT_ALWAYS_INLINE void begin_pairs() {
  alignas(64) static constexpr TileConfig config;
  _tile_loadconfig(&config);
}
KERNELMINT_ALWAYS_INLINE void end_pairs() { _tile_release(); }

template <bool BothRows, bool Accumulate>
KERNELMINT_ALWAYS_INLINE void multiply_pairs_tile(const std::uint16_t* left,
                                                  std::ptrdiff_t left_stride, const PairRow* right,
                                                  std::ptrdiff_t panel_rows, int depth, float* out,
                                                  std::ptrdiff_t out_stride) {
  const std::ptrdiff_t out_bytes = out_stride * static_cast<std::ptrdiff_t>(sizeof(float));
  float* second = out + kTile * out_stride;
  if constexpr (Accumulate) {
    _tile_loadd(0, out, out_bytes);
    _tile_loadd(1, out + kTile, out_bytes);
    if constexpr (BothRows) {
      _tile_loadd(2, second, out_bytes);
      _tile_loadd(3, second + kTile, out_bytes);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (BothRows) {
      _tile_zero(2);
      _tile_zero(3);
    }
  }
  for (int k = 0; k < depth; k += kTileDepth) {
    load_left<BothRows>(left + k, left_stride * static_cast<std::ptrdiff_t>(sizeof *left));
    const auto* tile = reinterpret_cast<const Tile*>(right + k / 2);
    multiply_add<BothRows>(*tile, *reinterpret_cast<const Tile*>(right + panel_rows + k / 2));
  }
  _tile_stored(0, out, out_bytes);
  _tile_stored(1, out + kTile, out_bytes);
  if constexpr (BothRows) {
    _tile_stored(2, second, out_bytes);
    _tile_stored(3, second + kTile, out_bytes);
  }
}

// out[rows][columns] = left[rows][depth] right[depth][columns], plus the old content if Accumulate.
// A panel of 16 columns is `panel_rows` PairRows long. Rows are rounded up to 16, columns are
// multiples of 32, `depth` of kPairRows.
template <bool Accumulate>
inline void multiply_pairs(int rows, const std::uint16_t* left, std::ptrdiff_t left_stride,
                           const PairRow* right, std::ptrdiff_t panel_rows, int columns, int depth,
                           float* out, std::ptrdiff_t out_stride) {
  compiler_fence();
  for (int column = 0; column < columns; column += 2 * kTile) {
    const PairRow* panel = right + column / kTile * panel_rows;
    for (int row = 0; row < rows; row += 2 * kTile) {
      const std::uint16_t* from = left + row * left_stride;
      float* to = out + row * out_stride + column;
      if (rows - row > kTile) {
        multiply_pairs_tile<true, Accumulate>(from, left_stride, panel, panel_rows, depth, to,
                                              out_stride);
      } else {
        multiply_pairs_tile<false, Accumulate>(from, left_stride, panel, panel_rows, depth, to,
                                               out_stride);
      }
    }
  }
  compiler_fence();
}
#else
// Functions that use them: a processor may have these without AMX, and AVX-512 without these.
#define KERNELMINT_PAIRS __attribute__((target("avx512bf16")))
inline constexpr int kPairRows = 2;

inline bool has_pair_products() {
  static const bool has = __builtin_cpu_supports("avx512bf16");
  return has;
}
KERNELMINT_ALWAYS_INLINE void begin_pairs() {}
KERNELMINT_ALWAYS_INLINE void end_pairs() {}

template <int Rows, bool Accumulate>
KERNELMINT_PAIRS inline void multiply_pairs_rows(int rows, const std::uint16_t* left,
                                                 std::ptrdiff_t left_stride, const PairRow* right,
                                                 std::ptrdiff_t panel_rows, int depth, float* out,
                                                 std::ptrdiff_t out_stride) {
  for (; rows >= Rows; rows -= Rows) {
    __m512 sum[Rows][2] = {};
    for (int k = 0; k < depth; k += 2) {
      const auto b0 = (__m512bh)load_bits<U32>(right[k / 2]);
      const auto b1 = (__m512bh)load_bits<U32>(right[panel_rows + k / 2]);
#pragma GCC unroll 12
      for (int r = 0; r < Rows; ++r) {
        std::uint32_t pair;
        __builtin_memcpy(&pair, left + r * left_stride + k, sizeof pair);
        const auto a = (__m512bh)(U32{} + pair);
        sum[r][0] = _mm512_dpbf16_ps(sum[r][0], a, b0);
        sum[r][1] = _mm512_dpbf16_ps(sum[r][1], a, b1);
      }
    }
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r) {
      float* to = out + r * out_stride;
      const F32 low = (F32)sum[r][0], high = (F32)sum[r][1];
      store_bits(to, Accumulate ? load_bits<F32>(to) + low : low);
      store_bits(to + kLanes, Accumulate ? load_bits<F32>(to + kLanes) + high : high);
    }
    left += Rows * left_stride;
    out += Rows * out_stride;
  }
  if constexpr (Rows > 1) {
    if (rows > 0) {
      multiply_pairs_rows<Rows / 2, Accumulate>(rows, left, left_stride, right, panel_rows, depth,
                                                out, out_stride);
    }
  }
}

// out[rows][columns] = left[rows][depth] right[depth][columns], plus the old content if Accumulate.
// A panel of 16 columns is `panel_rows` PairRows long. Columns are multiples of 32, `depth` of
// kPairRows.
template <bool Accumulate>
KERNELMINT_PAIRS inline void multiply_pairs(int rows, const std::uint16_t* left,
                                            std::ptrdiff_t left_stride, const PairRow* right,
                                            std::ptrdiff_t panel_rows, int columns, int depth,
                                            float* out, std::ptrdiff_t out_stride) {
  for (int column = 0; column < columns; column += 2 * kLanes) {
    multiply_pairs_rows<12, Accumulate>(rows, left, left_stride,
                                        right + column / kLanes * panel_rows, panel_rows, depth,
                                        out + column, out_stride);
  }
}
#endif
#endif

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::attention_backward
