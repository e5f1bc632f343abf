// Values that are not finite, in a block that some rows see only in part: 0 times such a value is
// NaN, so that a masked key would reach the rows before it. Or in any block of products that split
// numbers into parts, which such a value does not have.
#pragma once

#include "cpu_convert.h"
#include "cpu_vector.h"

namespace kernelmint::attention {
inline namespace KERNELMINT_ISA {

using namespace kernelmint::cpu;

// The products take a copy of the block with zeros in the place of these values, and the rows that
// see one have it added. If all are finite, as nearly always, the block is read once and no
// more.
template <class T, int D, int B_c>
struct HiddenValues {
  int num_keys = 0;  // with values that are not finite
  const T* values;
  std::int64_t stride;
  std::int16_t keys[B_c];
  alignas(64) T finite[B_c][D];

  // Finds them among the first `count` keys of a block. Returns the block for the products.
  const T* find(const T* v, std::int64_t v_stride, int count, std::int64_t& products_stride) {
    num_keys = 0;
    values = v;
    stride = products_stride = v_stride;
    F32 of_all{};
    for (int key = 0; key < count; ++key) {
      for (int d = 0; d < D; d += kLanes) of_all += load(v + key * v_stride + d) * F32{};
    }
    if (reduce_add(of_all) == 0) return v;
    for (int key = 0; key < count; ++key) {
      F32 zeros{};
      for (int d = 0; d < D; d += kLanes) zeros += load(v + key * v_stride + d) * F32{};
      if (!(reduce_add(zeros) == 0)) keys[num_keys++] = static_cast<std::int16_t>(key);
    }
    for (int key = 0; key < count; ++key) {
      __builtin_memcpy(finite[key], v + key * v_stride, sizeof(finite[key]));
    }
    for (int i = 0; i < num_keys; ++i) {
      for (int d = 0; d < D; ++d) {
        if (!is_finite(keys[i], d)) finite[keys[i]][d] = T{};
      }
    }
    products_stride = D;
    return finite[0];
  }

  // Adds the values that row `out` sees among keys [begin, end) of the block, by their
  // probabilities.
  template <class Products>
  void add(const Products& products, int row, int begin, int end, float* out) const {
    for (int i = 0; i < num_keys && keys[i] < end; ++i) {
      if (keys[i] < begin) continue;
      const float p = products.probability(row, keys[i]);
      for (int d = 0; d < D; ++d) {
        if (!is_finite(keys[i], d)) out[d] += p * element(keys[i], d);
      }
    }
  }

 private:
  float element(int key, int d) const {
    return load(values + key * stride + d / kLanes * kLanes)[d % kLanes];
  }
  bool is_finite(int key, int d) const { return element(key, d) * 0 == 0; }
};

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::attention
