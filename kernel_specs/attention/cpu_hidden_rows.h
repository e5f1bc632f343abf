// Values that are not finite, in a step of which some queries do not see some keys: 0 times such a
// value is NaN, so that K would reach dQ, and Q and dO would reach dK and dV, of pairs that do not
// see each other.
#pragma once

#include <cstdint>

#include "attention/cpu_some.h"
#include "cpu_vector.h"

namespace kernelmint::attention_backward {
inline namespace KERNELMINT_ISA {

using namespace kernelmint::attention;

// The rows of a block with values that are not finite.
template <class T, int kRows>
struct UnusualRows {
  int count = 0;
  std::int16_t rows[kRows];
  const T* first;
  std::int64_t stride, columns;

  void find(const T* block, std::int64_t block_stride, int block_rows, std::int64_t block_columns) {
    first = block, stride = block_stride, columns = block_columns, count = 0;
    for (int row = 0; row < block_rows; ++row) {
      F32 zeros{};
      for (std::int64_t d = 0; d < columns; d += kLanes)
        zeros += load_some(first + row * stride + d, columns - d) * F32{};
      if (!(reduce_add(zeros) == 0)) rows[count++] = static_cast<std::int16_t>(row);
    }
  }

  // f(row, column, value) for each of these values.
  template <class F>
  void for_each(const F& f) const {
    for (int i = 0; i < count; ++i) {
      for (std::int64_t d = 0; d < columns; ++d) {
        const float x = load_some(first + rows[i] * stride + d, 1)[0];
        if (!(x * 0 == 0)) f(rows[i], static_cast<int>(d), x);
      }
    }
  }
};

// The sums of a step take zeros in the place of these values, and the pairs that see each other
// have them added. If all values are finite, as nearly always, a block is read once and no more.
template <class T, int B_r, int B_c>
struct HiddenRows {
  UnusualRows<T, B_c> keys;
  UnusualRows<T, B_r> queries, out_gradients;

  bool are_any() const { return keys.count + queries.count + out_gradients.count > 0; }

  template <class Products>
  void hide(Products& products) const {
    keys.for_each([&](int i, int d, float) { products.set_key(i, d, 0); });
    queries.for_each([&](int r, int d, float) { products.set_query(r, d, 0); });
    out_gradients.for_each([&](int r, int d, float) { products.set_out_gradient(r, d, 0); });
  }

  // Adds the values, of so many queries, each of which sees `seen(row)`, and gives K its own back.
  template <int D, class Products, class OfRow>
  void add(Products& products, int rows, const OfRow& seen, float* dq, float* dk, float* dv) const {
    keys.for_each([&](int i, int d, float x) {
      for (int r = 0; r < rows; ++r) {
        if (i >= seen(r).begin && i < seen(r).end)
          dq[r * D + d] += products.score_gradient(r, i) * x;
      }
      products.set_key(i, d, x);
    });
    queries.for_each([&](int r, int d, float x) {
      for (int i = seen(r).begin; i < seen(r).end; ++i)
        Products::of_key(dk, i, d) += products.score_gradient(r, i) * x;
    });
    out_gradients.for_each([&](int r, int d, float x) {
      for (int i = seen(r).begin; i < seen(r).end; ++i)
        Products::of_key(dv, i, d) += products.probability(r, i) * x;
    });
  }
};

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::attention_backward
