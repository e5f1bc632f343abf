// The online softmax of one warp's rows: Milakov and Gimelshein, "Online normalizer calculation for
// softmax" (2018), as FlashAttention-2 (Dao, 2023) uses it. All in fp32.
#pragma once

#include <cstdint>

#include "ptx/math.cuh"
#include "register_tile.cuh"

namespace kernelmint::attention {

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

// Stands for an output whose products still run: keeps its rows' factors.
template <int kRows>
class DeferredFactors {
 public:
  __device__ DeferredFactors() {
    unroll<kRows>([&](int row) { factors_[row] = 1; });
  }
  template <class F>
  __device__ __forceinline__ void for_each(int row, const F& f) {
    f(factors_[row]);
  }
  template <class Output>
  __device__ __forceinline__ void apply(Output& output) const {
    unroll<kRows>(
        [&](int row) { output.for_each(row, [&](float& value) { value *= factors_[row]; }); });
  }

 private:
  float factors_[kRows];
};

// The running maximum and sum of each row, and with them the probabilities of a block of scores.
// `Scores` and `Output` are RegisterTiles of as many rows, of which each lane has kRows.
//
// Optimized, the exponent is one fused multiply-add, 2^(s * c - m) with c = scale * log2(e) and
// m = max(s) * c, and a row's maximum is kept until one larger by a factor of 2^kSlack (in the
// exponential) comes up: probabilities stay below 2^kSlack, which costs no precision in floating
// point and cancels in o = O / l; in exchange nearly all blocks need no reduction of the maximum
// over lanes and no rescaling. m is rounded, which multiplies a row's probabilities by a common
// factor; in far rows, where it could be large, the unscaled maximum is taken off the scores first.
// Otherwise the textbook's form: scaled scores, e^(s - m), everything rescaled at every block.
template <int kRows, bool kOptimized>
class OnlineSoftmax {
 public:
  static constexpr float kSlack = 8;

  // `scale` must be positive.
  __device__ explicit OnlineSoftmax(float scale) : factor_(kOptimized ? scale * kLog2E : scale) {
    restart();
  }

  // For other rows.
  __device__ __forceinline__ void restart() {
    unroll<kRows>([&](int row) {
      maximum_[row] = kNoMaximum;
      sum_[row] = 0;
    });
  }

  // Takes the scores of a block into account: updates the maxima and rescales the sums and `output`
  // accordingly. With kFirst there is nothing to rescale yet. Whether a row of the warp, which then
  // all agree on, may have been rescaled.
  template <bool kFirst, class Scores, class Output>
  __device__ __forceinline__ bool update_maximum(Scores& scores, Output& output) {
    float greatest[kRows];  // the greatest of this lane's scores
    unroll<kRows>([&](int row) {
      greatest[row] = -kInfinity;
      scores.for_each(row, [&](float& score) {
        if constexpr (!kOptimized) score *= factor_;
        greatest[row] = fmaxf(greatest[row], score);
      });
    });
    if constexpr (!kOptimized) {
      unroll<kRows>([&](int row) {
        const float maximum = fmaxf(maximum_[row], quad_max(greatest[row]));
        if constexpr (!kFirst) rescale(row, ptx::exp2((maximum_[row] - maximum) * kLog2E), output);
        maximum_[row] = maximum;
      });
      return !kFirst;
    } else if constexpr (kFirst) {
      bool far = false;
      unroll<kRows>([&](int row) {
        maximum_[row] = kept(quad_max(greatest[row]));
        far |= is_far(maximum_[row]);
      });
      if (__any_sync(~0u, far)) unroll<kRows>([&](int row) { subtract_maximum(scores, row); });
      return false;
    } else {
      bool act = false;
      unroll<kRows>([&](int row) { act |= grows(greatest[row], row) | is_far(maximum_[row]); });
      const bool any = __any_sync(~0u, act);
      if (any) {
        unroll<kRows>([&](int row) {
          const float row_greatest = quad_max(greatest[row]);
          const float candidate = kept(row_greatest);
          const float change = difference(maximum_[row], candidate);
          const bool grew = is_far(maximum_[row]) ? change < -kSlack : grows(row_greatest, row);
          rescale(row, grew ? ptx::exp2(change) : 1.f, output);
          if (grew) maximum_[row] = candidate;
          subtract_maximum(scores, row);
        });
      }
      return any;
    }
  }

  // Turns the scores of slice `slice` of 16 keys into probabilities, relative to the maximum, and
  // adds them to the sums. Added up in pairs: a chain of additions would keep all of them in
  // registers.
  template <class Scores>
  __device__ __forceinline__ void exponentiate(Scores& scores, int row_tile, int slice) {
    unroll<2>([&](int half) {
      const int row = 2 * row_tile + half;
      float probability[4];
      unroll<4>([&](int i) {
        probability[i] = scores(row, 4 * slice + i) = exponential(scores(row, 4 * slice + i), row);
      });
      sum_[row] += (probability[0] + probability[1]) + (probability[2] + probability[3]);
    });
  }

  // Sums over the lanes of each row; call once, after the last block.
  __device__ __forceinline__ void reduce() {
    unroll<kRows>([&](int row) { sum_[row] = quad_sum(sum_[row]); });
  }

  // A row's maximum and this lane's part of its sum, as `merge` takes them.
  struct Row {
    float maximum, sum;
  };
  __device__ __forceinline__ Row row(int i) const { return {maximum_[i], sum_[i]}; }

  // Takes in another warp's results of other keys: the row's output becomes `mine` times it plus
  // `theirs` times the other output. A factor is 0 if there were no keys, whatever the output is.
  struct Factors {
    float mine, theirs;

    __device__ __forceinline__ void apply(float& value, float other) const {
      value = (mine == 0 ? 0 : value * mine) + (theirs == 0 ? 0 : other * theirs);
    }
  };
  __device__ __forceinline__ Factors merge(int i, const Row& other) {
    const float change = difference(maximum_[i], other.maximum);
    Factors factors{ptx::exp2(fminf(change, 0.f)), ptx::exp2(fminf(-change, 0.f))};
    if (maximum_[i] == kNoMaximum) factors.mine = 0;
    if (other.maximum == kNoMaximum) factors.theirs = 0;
    sum_[i] = sum_[i] * factors.mine + other.sum * factors.theirs;
    if (change < 0) maximum_[i] = other.maximum;
    return factors;
  }

  // The factor that turns a row of O into o: 1 / l, and 0 if the row saw no key.
  __device__ __forceinline__ float normalizer(int row) const {
    return sum_[row] == 0 ? 0.f : __frcp_rn(sum_[row]);
  }

  // ln(sum over keys of exp(scale * q k^T)); -inf if the row saw no key.
  __device__ __forceinline__ float log_sum_exp(int row) const {
    const float maximum =
        kOptimized ? fmaf(subtracted(maximum_[row]), factor_, maximum_[row]) * kLn2 : maximum_[row];
    return maximum + logf(sum_[row]);
  }

  // For tracing. M, of the scores as the products give them if optimized, else of scaled ones; -inf
  // if the row has seen no key.
  __device__ float maximum(int row) const {
    if (maximum_[row] == kNoMaximum) return -kInfinity;
    if (!kOptimized) return maximum_[row];
    return is_far(maximum_[row]) ? subtracted(maximum_[row]) : maximum_[row] / factor_;
  }

  // For tracing. L, over all lanes.
  __device__ float sum(int row) const { return quad_sum(sum_[row]); }

  // For tracing. What L and O were multiplied by since `before`; 0 if there was nothing.
  __device__ float rescaled_since(const OnlineSoftmax& before, int row) const {
    if (maximum_[row] == kNoMaximum) return 0;
    if (!kOptimized) return ptx::exp2((before.maximum_[row] - maximum_[row]) * kLog2E);
    return ptx::exp2(difference(before.maximum_[row], maximum_[row]));
  }

 private:
  // A row is far if its scaled maximum exceeds kFar: up to there, its rounding changes
  // probabilities by a factor of at most 2^(2^-11). A far row's unscaled maximum is taken off its
  // scores, and kept with 140 off its exponent and that of c added: the same digits, but too small
  // to count where the exponential subtracts what is kept. kFar comes out near 2^-126, and the
  // greatest float below kLeastNear. Other rows keep the scaled maximum, which must not look like a
  // far row's.
  static constexpr float kFar = 16384;
  static constexpr float kLeastNear = 1.f / 4096;
  static constexpr std::uint32_t kShift = (140u + 127u) << 23;  // 127: the bias in c's exponent

  __device__ __forceinline__ std::uint32_t exponent_of_factor() const {
    return __float_as_uint(factor_) & 0x7f800000u;
  }

  // For rows that saw no key, kNoMaximum, which does not look like a far row's.
  __device__ __forceinline__ float kept(float greatest) const {
    const float scaled = fmaxf(greatest * factor_, kNoMaximum);
    if (fabsf(scaled) > kFar && fabsf(scaled) < -kNoMaximum)
      return __uint_as_float(__float_as_uint(greatest) + exponent_of_factor() - kShift);
    return fabsf(scaled) < kLeastNear ? kLeastNear : scaled;
  }

  __device__ __forceinline__ static bool is_far(float kept) { return fabsf(kept) < kLeastNear; }

  // For a near row. Every caller asks this same function, so that a row does not depend on others.
  __device__ __forceinline__ bool grows(float greatest, int row) const {
    return fmaf(greatest, factor_, -kSlack) > maximum_[row];
  }

  // The number that is subtracted from a row's scores: its unscaled maximum if it is far.
  __device__ __forceinline__ float subtracted(float kept) const {
    return is_far(kept) ? __uint_as_float(__float_as_uint(kept) - exponent_of_factor() + kShift)
                        : 0.f;
  }

  // From one kept maximum to another, in powers of two: the difference of subtracted * c + kept,
  // rounded once.
  __device__ __forceinline__ float difference(float before, float after) const {
    return fmaf(subtracted(before) - subtracted(after), factor_, before - after);
  }

  template <class Scores>
  __device__ __forceinline__ void subtract_maximum(Scores& scores, int row) const {
    const float maximum = subtracted(maximum_[row]);
    scores.for_each(row, [&](float& score) { score -= maximum; });
  }

  __device__ __forceinline__ float exponential(float score, int row) const {
    return kOptimized ? ptx::exp2(fmaf(score, factor_, -maximum_[row]))
                      : ptx::exp2((score - maximum_[row]) * kLog2E);
  }

  template <class Output>
  __device__ __forceinline__ void rescale(int row, float factor, Output& output) {
    sum_[row] *= factor;
    output.for_each(row, [&](float& value) { value *= factor; });
  }

  float factor_;          // scale, times log2(e) if optimized
  float maximum_[kRows];  // the maxima of the scaled scores; if optimized, as `kept` gives them
  float sum_[kRows];      // this lane's part of it
};

}  // namespace kernelmint::attention
