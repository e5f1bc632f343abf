// The online softmax over one strip of rows (Milakov and Gimelshein 2018, arXiv:1805.02867).
#pragma once

#include "attention/cpu_scores.h"
#include "cpu_convert.h"
#include "cpu_math.h"
#include "cpu_vector.h"

namespace kernelmint::attention {
inline namespace KERNELMINT_ISA {

using namespace kernelmint::cpu;

// The state of each row so far. Maxima are of scores times scale * log2(e), so exponentials are
// powers of two. Sums are kept lane by lane and added up once, at the end.
template <int B_r>
struct alignas(64) RowStatistics {
  static_assert(B_r % kLanes == 0, "whole vectors of rows");
  alignas(64) float maximum[B_r];
  alignas(64) float sum[B_r][kLanes];
  alignas(64) float shift[B_r];    // the maximum, or 0 if it is -inf: -inf - shift is no NaN
  alignas(64) float rescale[B_r];  // this block's factor of the row's earlier sums

  void clear(int rows) {
    for (int r = 0; r < rows; ++r) {
      maximum[r] = kNoKey;
      store(sum[r], F32{});
    }
  }
};

// Scaled scores of two vectors of keys less `shift`; scores past the first `visible` are -inf. The
// product is rounded as it was for the maximum, so that the greatest score gives exactly 0: fused,
// the maximum's rounding error comes back, and beyond 2^31 that is a power past any float.
struct ScaledPair {
  F32 low, high;
};

KERNELMINT_ALWAYS_INLINE ScaledPair scaled_scores(const float* scores, F32 scale, F32 shift,
                                                  int key, int visible) {
  ScaledPair s{rounded_product(load(scores + key), scale) - shift,
               rounded_product(load(scores + key + kLanes), scale) - shift};
  if (key + 2 * kLanes > visible) {
    const I32 lane = lane_numbers();
    s.low = lane < visible - key ? s.low : splat(kNoKey);
    s.high = lane < visible - key - kLanes ? s.high : splat(kNoKey);
  }
  return s;
}

// Turns the strip's scores into probabilities relative to the rows' new maxima, in `products`, and
// brings the statistics and `out` of its rows up to date. Row i of the strip is row first + i; it
// sees the first visible(i) of the block's keys, and keys from there to `count` get 0.
template <class Products, int B_r, int Rows, int D, class Visible>
KERNELMINT_ALWAYS_INLINE void online_softmax(Products& products, RowStatistics<B_r>& statistics,
                                             float (&out)[Rows][D], int first, int rows, int count,
                                             float scale_log2, Visible visible) {
  const F32 scale = splat(scale_log2);
  for (int i = 0; i < rows; ++i) {
    F32 low = splat(statistics.maximum[first + i]), high = low;
    const int seen = visible(i);
    for (int key = 0; key < seen; key += 2 * kLanes) {
      const ScaledPair s = scaled_scores(products.scores[i], scale, F32{}, key, seen);
      low = max(low, s.low);
      high = max(high, s.high);
    }
    statistics.shift[first + i] = reduce_max(max(low, high));  // the new maximum, for now
  }
  for (int row = first / kLanes * kLanes; row < first + rows; row += kLanes) {
    const F32 before = load(&statistics.maximum[row]), now = load(&statistics.shift[row]);
    const F32 shift = now == splat(kNoKey) ? F32{} : now;
    store(&statistics.rescale[row], exp2(before - shift));
    store(&statistics.maximum[row], now);
    store(&statistics.shift[row], shift);
  }
  for (int i = 0; i < rows; ++i) {
    const int row = first + i, seen = visible(i);
    const F32 shift = splat(statistics.shift[row]);
    F32 low{}, high{};
    int key = 0;
    for (; key < seen; key += 2 * kLanes) {
      const ScaledPair s = scaled_scores(products.scores[i], scale, shift, key, seen);
      const F32 p0 = exp2(s.low), p1 = exp2(s.high);
      low += p0;
      high += p1;
      products.put_probabilities(i, key, p0, p1);
    }
    for (; key < count; key += 2 * kLanes) products.put_probabilities(i, key, F32{}, F32{});
    const float rescale = statistics.rescale[row];
    store(statistics.sum[row], fma(load(statistics.sum[row]), splat(rescale), low + high));
    if (rescale != 1.0f) {
      for (int d = 0; d < D; d += kLanes) store(&out[row][d], load(&out[row][d]) * rescale);
    }
  }
}

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::attention
