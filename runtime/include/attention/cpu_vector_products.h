// The two matrix products of attention in f32, on vector registers: any dtype, any instruction set.
#pragma once

#include "cpu_convert.h"
#include "cpu_vector.h"
#include "integers.h"

namespace kernelmint::attention {
inline namespace KERNELMINT_ISA {

using namespace kernelmint::cpu;

// c[Rows][2 vectors] = a[Rows][depth] b[depth][2 vectors], plus c's old content if Accumulate. All
// of c stays in registers: each step of the depth loads two vectors of b and one element of a per
// row. The old content is added last: the block's own sums are smaller, so less is lost in
// rounding. With a_row of 1, a_depth being a row's stride, a is taken transposed.
template <int Rows, bool Accumulate>
KERNELMINT_ALWAYS_INLINE void multiply_tile(const float* a, std::ptrdiff_t a_row,
                                            std::ptrdiff_t a_depth, const float* b,
                                            std::ptrdiff_t b_stride, int depth, float* c,
                                            std::ptrdiff_t c_stride) {
  F32 sum[Rows][2] = {};
  for (int k = 0; k < depth; ++k) {
    const F32 b0 = load(b + k * b_stride);
    const F32 b1 = load(b + k * b_stride + kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const F32 element = splat(a[r * a_row + k * a_depth]);
      sum[r][0] = fma(element, b0, sum[r][0]);
      sum[r][1] = fma(element, b1, sum[r][1]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    float* row = c + r * c_stride;
    store(row, Accumulate ? load(row) + sum[r][0] : sum[r][0]);
    store(row + kLanes, Accumulate ? load(row + kLanes) + sum[r][1] : sum[r][1]);
  }
}

// The same for any number of rows: as many whole tiles as fit, then smaller ones.
template <int Rows, bool Accumulate>
KERNELMINT_ALWAYS_INLINE void multiply_rows(int rows, const float* a, std::ptrdiff_t a_row,
                                            std::ptrdiff_t a_depth, const float* b,
                                            std::ptrdiff_t b_stride, int depth, float* c,
                                            std::ptrdiff_t c_stride) {
  for (; rows >= Rows; rows -= Rows) {
    multiply_tile<Rows, Accumulate>(a, a_row, a_depth, b, b_stride, depth, c, c_stride);
    a += Rows * a_row;
    c += Rows * c_stride;
  }
  if constexpr (Rows > 1) {
    if (rows > 0) {
      multiply_rows<Rows / 2, Accumulate>(rows, a, a_row, a_depth, b, b_stride, depth, c, c_stride);
    }
  }
}

// Keys and values are repacked, block by block, into panels two vectors wide that lie in memory in
// the order in which multiply_tile reads them, so whatever their strides, it runs from the cache.
template <class T, int D, int B_r, int B_c>
struct alignas(64) VectorProducts {
  static constexpr int kPanel = 2 * kLanes;
  static constexpr int kTileRows = kVectorRegisters == 32 ? 8 : 6;  // 16 or 12 sums in registers
  static constexpr bool kSplits = false;  // numbers into parts, which infinities do not have
  static constexpr int kStripRows = 48;   // whole tiles of either size
  static constexpr int kFewRows = 4;      // with up to so many rows, DirectProducts are faster
  static constexpr int kScoreStride = B_c + 16;  // not a power of two: rows spread over cache sets
  static_assert(B_c % kPanel == 0 && D % kPanel == 0, "whole panels");

  alignas(64) float queries[B_r][D];
  alignas(64) float keys[B_c / kPanel][D][kPanel];
  alignas(64) float values[D / kPanel][B_c][kPanel];
  alignas(64) float scores[kStripRows][kScoreStride];  // then probabilities, in place
  alignas(64) float out[B_r][D];

  void begin() {}
  void end() {}

  void load_query(int row, const T* q) {
    for (int d = 0; d < D; d += kLanes) store(&queries[row][d], load(q + d));
  }

  // `count` keys and values; zeros follow keys up to a whole vector, values up to a whole panel.
  void load_keys_values(const T* k, std::int64_t k_stride, const T* v, std::int64_t v_stride,
                        int count) {
    for (int first = 0; first < count; first += kLanes) {
      float (*panel)[kPanel] = keys[first / kPanel];
      for (int d = 0; d < D; d += kLanes) {
        F32 square[kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) {
          square[i] = first + i < count ? load(k + (first + i) * k_stride + d) : F32{};
        }
        transpose(square);
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) store(&panel[d + i][first % kPanel], square[i]);
      }
    }
    for (int key = 0; key < round_up(count); ++key) {
      for (int d = 0; d < D; d += kLanes) {
        store(&values[d / kPanel][key][d % kPanel],
              key < count ? load(v + key * v_stride + d) : F32{});
      }
    }
  }

  // scores[0 .. rows) = rows of `queries` from `first` on, times the first `count` keys.
  void multiply_queries_keys(int first, int rows, int count) {
    for (int key = 0; key < count; key += kPanel) {
      multiply_rows<kTileRows, false>(rows, queries[first], D, 1, keys[key / kPanel][0], kPanel, D,
                                      &scores[0][key], kScoreStride);
    }
  }

  KERNELMINT_ALWAYS_INLINE void put_probabilities(int row, int key, F32 p0, F32 p1) {
    store(&scores[row][key], p0);
    store(&scores[row][key + kLanes], p1);
  }

  // out[first .. first + rows) += probabilities of the first `count` keys, times their values.
  void multiply_probabilities_values(int first, int rows, int count) {
    for (int d = 0; d < D; d += kPanel) {
      multiply_rows<kTileRows, true>(rows, scores[0], kScoreStride, 1, values[d / kPanel][0],
                                     kPanel, count, &out[first][d], D);
    }
  }

  // Places of the operands, for tracing.
  float query(int row, int d) const { return queries[row][d]; }
  float key(int i, int d) const { return keys[i / kPanel][d][i % kPanel]; }
  float value(int i, int d) const { return values[d / kPanel][i][d % kPanel]; }
  float probability(int row, int key) const { return scores[row][key]; }

  static constexpr int round_up(int count) { return kernelmint::round_up(count, kPanel); }
};

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::attention
