// The two matrix products of attention for a few rows, as a token's decoding has them: keys and
// values are read where they lie, once for each row, since packing them would cost more.
#pragma once

#include "cpu_convert.h"
#include "cpu_vector.h"
#include "integers.h"

namespace kernelmint::attention {
inline namespace KERNELMINT_ISA {

using namespace kernelmint::cpu;

template <class T, int D, int B_c>
struct alignas(64) DirectProducts {
  static constexpr bool kSplits = false;  // numbers into parts, which infinities do not have
  static constexpr int kStripRows = 4;    // and the most rows there may be
  static_assert(B_c % (2 * kLanes) == 0 && D % kLanes == 0, "whole vectors");

  alignas(64) float queries[kStripRows][D];
  alignas(64) float scores[kStripRows][B_c];  // then probabilities, in place
  alignas(64) float out[kStripRows][D];
  const T* keys;
  const T* values;
  std::int64_t key_stride, value_stride;
  int num_keys;

  void begin() {}
  void end() {}

  void load_query(int row, const T* q) {
    for (int d = 0; d < D; d += kLanes) store(&queries[row][d], load(q + d));
  }

  void load_keys_values(const T* k, std::int64_t k_stride, const T* v, std::int64_t v_stride,
                        int count) {
    keys = k;
    key_stride = k_stride;
    values = v;
    value_stride = v_stride;
    num_keys = count;
  }

  // scores[0 .. rows) = rows of `queries` from `first` on, times the first `count` keys.
  void multiply_queries_keys(int first, int rows, int count) {
    for (int key = 0; key < count; key += kLanes) {
      for (int r = 0; r < rows; ++r) {
        F32 sums[kLanes] = {};
        for (int d = 0; d < D; d += kLanes) {
          const F32 q = load(&queries[first + r][d]);
#pragma GCC unroll 16
          for (int i = 0; i < kLanes; ++i) {
            const int existing = key + i < num_keys ? key + i : num_keys - 1;
            sums[i] = fma(q, load(keys + existing * key_stride + d), sums[i]);
          }
        }
        store(&scores[r][key], sum_each(sums));
      }
    }
  }

  KERNELMINT_ALWAYS_INLINE void put_probabilities(int row, int key, F32 p0, F32 p1) {
    store(&scores[row][key], p0);
    store(&scores[row][key + kLanes], p1);
  }

  // out[first .. first + rows) += probabilities of the first `count` keys, times their values.
  void multiply_probabilities_values(int first, int rows, int count) {
    constexpr int kVectors = most_at_once(8);  // sums that stay in registers
    if (count > num_keys) count = num_keys;
    for (int d = 0; d < D; d += kVectors * kLanes) {
      for (int r = 0; r < rows; ++r) {
        F32 sums[kVectors] = {};
        for (int key = 0; key < count; ++key) {
          const F32 p = splat(scores[r][key]);
#pragma GCC unroll 8
          for (int i = 0; i < kVectors; ++i) {
            sums[i] = fma(p, load(values + key * value_stride + d + i * kLanes), sums[i]);
          }
        }
#pragma GCC unroll 8
        for (int i = 0; i < kVectors; ++i) {
          float* to = &out[first + r][d + i * kLanes];
          store(to, load(to) + sums[i]);
        }
      }
    }
  }

  // Places of the operands, for tracing.
  float query(int row, int d) const { return queries[row][d]; }
  float key(int i, int d) const { return element(keys + i * key_stride, d); }
  float value(int i, int d) const { return element(values + i * value_stride, d); }
  float probability(int row, int key) const { return scores[row][key]; }

  static constexpr int round_up(int count) { return kernelmint::round_up(count, 2 * kLanes); }

 private:
  // The greatest number of a row's vectors, up to `most`, that divides them all.
  static constexpr int most_at_once(int most) {
    while (D / kLanes % most != 0) --most;
    return most;
  }
  static float element(const T* row, int d) { return load(row + d / kLanes * kLanes)[d % kLanes]; }
};

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::attention
