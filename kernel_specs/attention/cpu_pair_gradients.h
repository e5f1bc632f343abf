// The five matrix products of attention's backward in bf16, added up in f32.
#pragma once

#include "attention/cpu_differentiate.h"
#include "attention/cpu_pair_products.h"
#include "attention/cpu_some.h"
#include "cpu_convert.h"
#include "cpu_vector.h"
#include "dtypes.h"
#include "integers.h"

namespace kernelmint::attention_backward {
inline namespace KERNELMINT_ISA {

#if defined(KERNELMINT_PAIR_PRODUCTS)

// dK and dV of a block are kept transposed: dV^T = dO^T P, whose right operand takes two rows of P
// at a time, as they are made.
template <int D, int B_r, int B_c>
struct alignas(64) PairGradients {
  static constexpr int kKeys = 32;               // keys are taken so many at a time
  static constexpr int kScoreStride = B_c + 16;  // not a power of two: rows spread over cache sets
  static constexpr int kLeftStride = B_c + 32;
  static_assert(B_r % 32 == 0 && B_c % 32 == 0 && D % 32 == 0, "whole tiles");

  alignas(64) std::uint16_t queries[B_r][D];
  alignas(64) std::uint16_t out_gradients[B_r][D];
  alignas(64) std::uint16_t transposed_queries[D][B_r];
  alignas(64) std::uint16_t transposed_out_gradients[D][B_r];
  alignas(64) PairRow keys[D / 16][B_c / 2];
  alignas(64) PairRow transposed_keys[B_c / 16][D / 2];
  alignas(64) PairRow transposed_values[B_c / 16][D / 2];
  alignas(64) float scores[B_r][kScoreStride];
  alignas(64) float dp[B_r][kScoreStride];
  alignas(64) PairRow probabilities[B_c / 16][B_r / 2];
  alignas(64) PairRow score_gradients[B_c / 16][B_r / 2];
  alignas(64) std::uint16_t left_score_gradients[B_r][kLeftStride];

  void begin() { begin_pairs(); }
  void end() { end_pairs(); }

  // So many queries, zeros after them up to a whole number of kPairRows.
  void load_queries(const bf16* q, std::int64_t q_stride, const bf16* gradients,
                    std::int64_t gradient_stride, int rows) {
    load_rows(q, q_stride, rows, queries, transposed_queries);
    load_rows(gradients, gradient_stride, rows, out_gradients, transposed_out_gradients);
  }

  // `count` keys and values, zeros after them up to a whole number of kKeys.
  void load_keys_values(const bf16* k, std::int64_t k_stride, const bf16* v, std::int64_t v_stride,
                        int count) {
    transpose_pairs(k, k_stride, count, transposed_keys);
    transpose_pairs(v, v_stride, count, transposed_values);
    for (int key = 0; key < round_up(count, kKeys); key += 2) {
      for (int d = 0; d < D; d += 32) {
        const U16 even = row_or_zeros(k, k_stride, key, count, d),
                  odd = row_or_zeros(k, k_stride, key + 1, count, d);
        store_bits(keys[d / 16][key / 2], interleave_low(even, odd));
        store_bits(keys[d / 16 + 1][key / 2], interleave_high(even, odd));
      }
    }
  }

  // The first `rows` queries times the first `count` keys, and the gradients of the output times
  // the values.
  void multiply(int rows, int count) {
    multiply_pairs<false>(rows, queries[0], D, transposed_keys[0], D / 2, count, D, scores[0],
                          kScoreStride);
    multiply_pairs<false>(rows, out_gradients[0], D, transposed_values[0], D / 2, count, D, dp[0],
                          kScoreStride);
  }

  // Makes P and dS of scores and dP: 0 in rows after the last.
  template <class OfRow>
  KERNELMINT_PAIRS void differentiate(int rows, int count, OfRow of_row) {
    for (int r = 0; r < round_up(rows, kPairRows); r += 2) {
      const auto row = of_row(r), next = of_row(r + 1);
      for (int key = 0; key < count; key += kLanes) {
        const Differentiated even = row(load(&scores[r][key]), load(&dp[r][key]), key);
        const Differentiated odd = next(load(&scores[r + 1][key]), load(&dp[r + 1][key]), key);
        const U32 p = (U32)_mm512_cvtne2ps_pbh((__m512)odd.p, (__m512)even.p);
        const U32 ds = (U32)_mm512_cvtne2ps_pbh((__m512)odd.ds, (__m512)even.ds);
        store_bits(probabilities[key / 16][r / 2], interleaved(p));
        store_bits(score_gradients[key / 16][r / 2], interleaved(ds));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(&left_score_gradients[r][key]),
                            _mm512_castsi512_si256((__m512i)ds));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(&left_score_gradients[r + 1][key]),
                            _mm512_extracti64x4_epi64((__m512i)ds, 1));
      }
    }
  }

  // dv^T += dO^T P, dk^T += Q^T dS and dq += dS K, of so many rows and keys.
  void accumulate(int rows, int count, float* dq, float* dk, float* dv) {
    const int depth = round_up(rows, kPairRows);
    multiply_pairs<true>(D, transposed_out_gradients[0], B_r, probabilities[0], B_r / 2, count,
                         depth, dv, B_c);
    multiply_pairs<true>(D, transposed_queries[0], B_r, score_gradients[0], B_r / 2, count, depth,
                         dk, B_c);
    multiply_pairs<true>(rows, left_score_gradients[0], kLeftStride, keys[0], B_c / 2, D, count, dq,
                         D);
  }

  // Writes the first `count` rows and columns of a dK or a dV, times `factor`.
  static void write(const float* sums, float factor, bf16* to, std::int64_t stride, int count,
                    std::int64_t columns) {
    for (int first = 0; first < count; first += kLanes) {
      for (int d = 0; d < columns; d += kLanes) {
        F32 square[kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) square[i] = load(sums + (d + i) * B_c + first) * factor;
        transpose(square);
        for (int i = 0; i < kLanes && first + i < count; ++i) {
          store_some(to + (first + i) * stride + d, square[i], columns - d);
        }
      }
    }
  }

  // Places of the operands and of the sums, for traces and for values that are not finite. The set
  // operands are those of sums, not of scores.
  float query(int row, int d) const { return wide(queries[row][d]); }
  float out_gradient(int row, int d) const { return wide(out_gradients[row][d]); }
  float key(int i, int d) const { return wide(keys[d / 16][i / 2][d % 16] >> i % 2 * 16); }
  float value(int i, int d) const {
    return wide(transposed_values[i / 16][d / 2][i % 16] >> d % 2 * 16);
  }
  float score(int row, int key) const { return scores[row][key]; }
  float product(int row, int key) const { return dp[row][key]; }
  float probability(int row, int key) const {
    return wide(probabilities[key / 16][row / 2][key % 16] >> row % 2 * 16);
  }
  float score_gradient(int row, int key) const { return wide(left_score_gradients[row][key]); }
  static float& of_key(float* sums, int key, int d) { return sums[d * B_c + key]; }
  void set_query(int row, int d, float x) { transposed_queries[d][row] = narrow(x); }
  void set_out_gradient(int row, int d, float x) { transposed_out_gradients[d][row] = narrow(x); }
  void set_key(int i, int d, float x) {
    std::uint32_t& pair = keys[d / 16][i / 2][d % 16];
    pair = (pair & 0xffff0000u >> i % 2 * 16) | std::uint32_t{narrow(x)} << i % 2 * 16;
  }

 private:
  // The number of a value's lower 16 bits.
  static float wide(std::uint32_t bits) { return bit_cast<float>(bits << 16); }
  // The bits of a value that bf16 has.
  static std::uint16_t narrow(float x) {
    return static_cast<std::uint16_t>(bit_cast<std::uint32_t>(x) >> 16);
  }

  KERNELMINT_ALWAYS_INLINE static U16 row_or_zeros(const bf16* from, std::int64_t stride, int row,
                                                   int count, int d) {
    return row < count ? load_bits<U16>(from + row * stride + d) : U16{};
  }

  // a0 b0 a1 b1 ... of a vector that holds a0 a1 ... b0 b1 ....
  KERNELMINT_ALWAYS_INLINE static U32 interleaved(U32 halves) {
    return bit_cast<U32>([&]<int... I>(std::integer_sequence<int, I...>) {
      const U16 both = bit_cast<U16>(halves);
      return shuffle(both, both, std::integer_sequence<int, (I / 2 + I % 2 * kLanes)...>{});
    }(std::make_integer_sequence<int, 2 * kLanes>{}));
  }

  static void load_rows(const bf16* from, std::int64_t stride, int count,
                        std::uint16_t (&rows)[B_r][D], std::uint16_t (&transposed)[D][B_r]) {
    for (int first = 0; first < round_up(count, kPairRows); first += 32) {
      for (int d = 0; d < D; d += 32) {
        U16 square[32];
        for (int i = 0; i < 32; ++i) {
          square[i] = row_or_zeros(from, stride, first + i, count, d);
          store_bits(&rows[first + i][d], square[i]);
        }
        transpose(square);
        for (int i = 0; i < 32; ++i) store_bits(&transposed[d + i][first], square[i]);
      }
    }
  }

  static void transpose_pairs(const bf16* from, std::int64_t stride, int count,
                              PairRow (&panels)[B_c / 16][D / 2]) {
    for (int first = 0; first < round_up(count, kKeys); first += kLanes) {
      for (int d = 0; d < D; d += 32) {
        U32 square[kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) {
          square[i] = bit_cast<U32>(row_or_zeros(from, stride, first + i, count, d));
        }
        transpose(square);
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) store_bits(panels[first / 16][d / 2 + i], square[i]);
      }
    }
  }
};

#endif

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::attention_backward
