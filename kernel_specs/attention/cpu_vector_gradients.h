// The five matrix products of attention's backward in f32, on vector registers: any dtype, any
// instruction set.
#pragma once

#include "attention/cpu_differentiate.h"
#include "attention/cpu_some.h"
#include "attention/cpu_vector_products.h"
#include "cpu_convert.h"
#include "cpu_vector.h"

namespace kernelmint::attention_backward {
inline namespace KERNELMINT_ISA {

using namespace kernelmint::attention;

// dK and dV of a block are kept as they are in memory.
template <class T, int D, int B_r, int B_c>
struct alignas(64) VectorGradients {
  static constexpr int kPanel = 2 * kLanes;
  static constexpr int kKeys = kPanel;  // keys are taken so many at a time
  static constexpr int kTileRows = kVectorRegisters == 32 ? 8 : 6;  // 16 or 12 sums in registers
  static constexpr int kStride = D + 16;         // not a power of two: rows spread over cache sets
  static constexpr int kScoreStride = B_c + 16;  // likewise
  static_assert(B_c % kPanel == 0 && D % kPanel == 0, "whole panels");

  alignas(64) float queries[B_r][kStride];
  alignas(64) float out_gradients[B_r][kStride];
  alignas(64) float keys[B_c][kStride];
  alignas(64) float transposed_keys[B_c / kPanel][D][kPanel];
  alignas(64) float transposed_values[B_c / kPanel][D][kPanel];
  alignas(64) float scores[B_r][kScoreStride];           // then probabilities, in place
  alignas(64) float score_gradients[B_r][kScoreStride];  // dP, then dS, in place

  void begin() {}
  void end() {}

  void load_queries(const T* q, std::int64_t q_stride, const T* gradients,
                    std::int64_t gradient_stride, int rows) {
    for (int r = 0; r < rows; ++r) {
      for (int d = 0; d < D; d += kLanes) {
        store(&queries[r][d], load(q + r * q_stride + d));
        store(&out_gradients[r][d], load(gradients + r * gradient_stride + d));
      }
    }
  }

  // `count` keys and values, zeros after them up to a whole panel.
  void load_keys_values(const T* k, std::int64_t k_stride, const T* v, std::int64_t v_stride,
                        int count) {
    transpose_rows(k, k_stride, count, transposed_keys);
    transpose_rows(v, v_stride, count, transposed_values);
    for (int key = 0; key < round_up(count, kKeys); ++key) {
      for (int d = 0; d < D; d += kLanes) {
        store(&keys[key][d], key < count ? load(k + key * k_stride + d) : F32{});
      }
    }
  }

  // The first `rows` queries times the first `count` keys, and the gradients of the output times
  // the values.
  void multiply(int rows, int count) {
    for (int key = 0; key < count; key += kPanel) {
      multiply_rows<kTileRows, false>(rows, queries[0], kStride, 1,
                                      transposed_keys[key / kPanel][0], kPanel, D, &scores[0][key],
                                      kScoreStride);
      multiply_rows<kTileRows, false>(rows, out_gradients[0], kStride, 1,
                                      transposed_values[key / kPanel][0], kPanel, D,
                                      &score_gradients[0][key], kScoreStride);
    }
  }

  // Makes P of scores, and dS of dP, in their place.
  template <class OfRow>
  void differentiate(int rows, int count, OfRow of_row) {
    for (int r = 0; r < rows; ++r) {
      const auto row = of_row(r);
      for (int key = 0; key < count; key += kLanes) {
        const Differentiated both = row(load(&scores[r][key]), load(&score_gradients[r][key]), key);
        store(&scores[r][key], both.p);
        store(&score_gradients[r][key], both.ds);
      }
    }
  }

  // dv += P^T dO, dk += dS^T Q and dq += dS K, of so many rows and keys.
  void accumulate(int rows, int count, float* dq, float* dk, float* dv) {
    for (int d = 0; d < D; d += kPanel) {
      multiply_rows<kTileRows, true>(count, scores[0], 1, kScoreStride, &out_gradients[0][d],
                                     kStride, rows, dv + d, D);
      multiply_rows<kTileRows, true>(count, score_gradients[0], 1, kScoreStride, &queries[0][d],
                                     kStride, rows, dk + d, D);
      multiply_rows<kTileRows, true>(rows, score_gradients[0], kScoreStride, 1, &keys[0][d],
                                     kStride, count, dq + d, D);
    }
  }

  // Writes the first `count` rows and columns of a dK or a dV, times `factor`.
  static void write(const float* sums, float factor, T* to, std::int64_t stride, int count,
                    std::int64_t columns) {
    for (int key = 0; key < count; ++key) {
      for (int d = 0; d < columns; d += kLanes) {
        store_some(to + key * stride + d, load(sums + key * D + d) * factor, columns - d);
      }
    }
  }

  // Places of the operands and of the sums, for traces and for values that are not finite; scores
  // and dP until they are P and dS.
  float query(int row, int d) const { return queries[row][d]; }
  float out_gradient(int row, int d) const { return out_gradients[row][d]; }
  float key(int i, int d) const { return keys[i][d]; }
  float value(int i, int d) const { return transposed_values[i / kPanel][d][i % kPanel]; }
  float score(int row, int key) const { return scores[row][key]; }
  float product(int row, int key) const { return score_gradients[row][key]; }
  float probability(int row, int key) const { return scores[row][key]; }
  float score_gradient(int row, int key) const { return score_gradients[row][key]; }
  static float& of_key(float* sums, int key, int d) { return sums[key * D + d]; }
  void set_query(int row, int d, float x) { queries[row][d] = x; }
  void set_out_gradient(int row, int d, float x) { out_gradients[row][d] = x; }
  void set_key(int i, int d, float x) { keys[i][d] = x; }

 private:
  static void transpose_rows(const T* from, std::int64_t stride, int count,
                             float (&panels)[B_c / kPanel][D][kPanel]) {
    for (int first = 0; first < round_up(count, kPanel); first += kLanes) {
      float (*panel)[kPanel] = panels[first / kPanel];
      for (int d = 0; d < D; d += kLanes) {
        F32 square[kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) {
          square[i] = first + i < count ? load(from + (first + i) * stride + d) : F32{};
        }
        transpose(square);
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) store(&panel[d + i][first % kPanel], square[i]);
      }
    }
  }
};

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::attention_backward
