// The online softmax of one warp's rows: Milakov and Gimelshein, "Online normalizer calculation for
// softmax" (2018), as FlashAttention-2 (Dao, 2023) uses it. All in fp32.
#pragma once

#include <cstdint>

#include "ptx/math.cuh"

namespace kernelmint::flash_forward::sm80 {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;
inline constexpr float kInfinity = __builtin_huge_valf();
// The maximum of a row that has seen no key so far. Finite, so that a masked score, -inf, always
// has the probability 2^(-inf - maximum) = 0, and no scaled score is smaller.
inline constexpr float kNoMaximum = -3.402823466e38f;

// Over the four lanes that share a row of an accumulator.
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// The running maximum and sum of each row, and with them the probabilities of a block of scores.
// `Scores` is float[kRowTiles][n][4], `Output` float[kRowTiles][m][4]: mma accumulators, whose
// elements 0 and 1 belong to one row, 2 and 3 to the row eight below.
//
// Optimized, the exponent is one fused multiply-add, 2^(s * c - m * c) with c = scale * log2(e),
// and a row's maximum is kept until one larger by a factor of 2^kSlack (in the exponential) comes
// up: probabilities stay below 2^kSlack, which costs no precision in floating point and cancels in
// o = O / l; in exchange nearly all blocks need no reduction of the maximum over lanes and no
// rescaling. Otherwise the textbook's form: scaled scores, e^(s - m), everything rescaled at every
// block.
template <int kRowTiles, bool kOptimized>
class OnlineSoftmax {
 public:
  static constexpr float kSlack = 8;

  // `scale` must be positive.
  __device__ explicit OnlineSoftmax(float scale) : factor_(kOptimized ? scale * kLog2E : scale) {
#pragma unroll
    for (int row = 0; row < 2 * kRowTiles; ++row) {
      maximum_[row] = kNoMaximum;
      sum_[row] = 0;
    }
  }

  // Takes the scores of a block into account: updates the maxima and rescales the sums and `output`
  // accordingly. With kFirst there is nothing to rescale yet.
  template <bool kFirst, class Scores, class Output>
  __device__ __forceinline__ void update_maximum(Scores& scores, Output& output) {
    constexpr int kTiles = sizeof(scores[0]) / sizeof(scores[0][0]);
    float maximum[2 * kRowTiles];
#pragma unroll
    for (int row = 0; row < 2 * kRowTiles; ++row) {
      float x = -kInfinity;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int i = row % 2 * 2; i < row % 2 * 2 + 2; ++i) {
          float& score = scores[row / 2][tile][i];
          if constexpr (!kOptimized) score *= factor_;
          x = fmaxf(x, score);
        }
      }
      maximum[row] = kOptimized ? x * factor_ : x;
    }
    if constexpr (kFirst) {
#pragma unroll
      for (int row = 0; row < 2 * kRowTiles; ++row)
        maximum_[row] = fmaxf(quad_max(maximum[row]), kNoMaximum);
    } else if constexpr (kOptimized) {
      bool grew = false;
#pragma unroll
      for (int row = 0; row < 2 * kRowTiles; ++row) grew |= maximum[row] > maximum_[row] + kSlack;
      if (__any_sync(~0u, grew)) {
#pragma unroll
        for (int row = 0; row < 2 * kRowTiles; ++row) {
          const float candidate = quad_max(maximum[row]);
          rescale(row, candidate > maximum_[row] + kSlack ? candidate : maximum_[row], output);
        }
      }
    } else {
#pragma unroll
      for (int row = 0; row < 2 * kRowTiles; ++row)
        rescale(row, fmaxf(maximum_[row], quad_max(maximum[row])), output);
    }
  }

  // Turns the scores of 16 keys into probabilities, relative to the maximum, and adds them to the
  // sums. Added up in pairs: a chain of additions would keep all of them in registers.
  __device__ __forceinline__ void exponentiate(float (&left)[4], float (&right)[4], int row_tile) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const int row = 2 * row_tile + i / 2;
      left[i] = exponential(left[i], row);
      left[i + 1] = exponential(left[i + 1], row);
      right[i] = exponential(right[i], row);
      right[i + 1] = exponential(right[i + 1], row);
      sum_[row] += (left[i] + left[i + 1]) + (right[i] + right[i + 1]);
    }
  }

  // Sums over the lanes of each row; call once, after the last block.
  __device__ __forceinline__ void reduce() {
#pragma unroll
    for (int row = 0; row < 2 * kRowTiles; ++row) sum_[row] = quad_sum(sum_[row]);
  }

  // The factor that turns a row of O into o: 1 / l, and 0 where the row saw no key.
  __device__ __forceinline__ float normalizer(int row) const {
    return sum_[row] == 0 ? 0.f : __frcp_rn(sum_[row]);
  }

  // ln(sum over keys of exp(scale * q k^T)); -inf where the row saw no key.
  __device__ __forceinline__ float log_sum_exp(int row) const {
    return (kOptimized ? maximum_[row] * kLn2 : maximum_[row]) + logf(sum_[row]);
  }

  // For tracing. M, of the scores as the products give them if optimized, else of scaled ones; -inf
  // where the row has seen no key.
  __device__ float maximum(int row) const {
    if (maximum_[row] == kNoMaximum) return -kInfinity;
    return kOptimized ? maximum_[row] / factor_ : maximum_[row];
  }

  // For tracing. L, over all lanes.
  __device__ float sum(int row) const { return quad_sum(sum_[row]); }

  // For tracing. What L and O were multiplied by since `before`; 0 where there was nothing.
  __device__ float rescaled_since(const OnlineSoftmax& before, int row) const {
    if (maximum_[row] == kNoMaximum) return 0;
    return rescaling(before.maximum_[row] - maximum_[row]);
  }

 private:
  __device__ __forceinline__ static float rescaling(float change) {
    return ptx::exp2(kOptimized ? change : change * kLog2E);
  }

  __device__ __forceinline__ float exponential(float score, int row) const {
    return kOptimized ? ptx::exp2(fmaf(score, factor_, -maximum_[row]))
                      : ptx::exp2((score - maximum_[row]) * kLog2E);
  }

  template <class Output>
  __device__ __forceinline__ void rescale(int row, float maximum, Output& output) {
    constexpr int kTiles = sizeof(output[0]) / sizeof(output[0][0]);
    const float factor = rescaling(maximum_[row] - maximum);
    maximum_[row] = maximum;
    sum_[row] *= factor;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      output[row / 2][tile][row % 2 * 2] *= factor;
      output[row / 2][tile][row % 2 * 2 + 1] *= factor;
    }
  }

  float factor_;                  // scale, times log2(e) if optimized
  float maximum_[2 * kRowTiles];  // of the scaled scores; in powers of two if optimized
  float sum_[2 * kRowTiles];      // this lane's part of it
};

}  // namespace kernelmint::flash_forward::sm80
