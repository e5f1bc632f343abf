// The best blocks of a query, in registers.
#pragma once

namespace kernelmint::hstu {

// The rank of a score in the selection: NaN and +inf are the greatest finite number (fminf takes
// the other operand if one is NaN).
__device__ __forceinline__ float rank(float score) { return fminf(score, 0x1.fffffep127f); }

// The best kCount blocks of one row, by score descending, then index ascending.
template <int kCount>
struct Best {
  float score[kCount];
  int index[kCount];

  __device__ __forceinline__ Best() {
#pragma unroll
    for (int i = 0; i < kCount; ++i) score[i] = -INFINITY, index[i] = -1;
  }

  // Blocks come in rising order, so equal scores keep the order they come in.
  __device__ __forceinline__ void offer(float x, int c) {
    place(x, c, [x](float y, int) { return x > y; });
  }

  __device__ __forceinline__ void insert(float x, int c) {
    place(x, c, [x, c](float y, int j) { return x > y || (x == y && c < j); });
  }

  // Takes in another sorted list. The best of both lists are the better of each first and each last
  // entry; they come out rising, then falling.
  __device__ __forceinline__ void merge(const Best& other) {
    if constexpr ((kCount & (kCount - 1)) == 0) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int j = kCount - 1 - i;
        const bool take = goes_before(other.score[j], other.index[j], score[i], index[i]);
        score[i] = take ? other.score[j] : score[i];
        index[i] = take ? other.index[j] : index[i];
      }
#pragma unroll
      for (int apart = kCount / 2; apart > 0; apart /= 2) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          if ((i & apart) == 0) order(i, i + apart);
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (other.index[i] >= 0) insert(other.score[i], other.index[i]);
      }
    }
  }

  // The list of another lane.
  __device__ __forceinline__ Best of_lane(int lane) const {
    Best other;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      other.score[i] = __shfl_sync(~0u, score[i], lane);
      other.index[i] = __shfl_sync(~0u, index[i], lane);
    }
    return other;
  }

  __device__ __forceinline__ static Best choose(bool first, const Best& x, const Best& y) {
    Best chosen;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      chosen.score[i] = first ? x.score[i] : y.score[i];
      chosen.index[i] = first ? x.index[i] : y.index[i];
    }
    return chosen;
  }

 private:
  // Unused places, of score -inf and index -1, must come last: as unsigned numbers, they do.
  static __device__ __forceinline__ bool goes_before(float x, int c, float y, int j) {
    return x > y || (x == y && static_cast<unsigned>(c) < static_cast<unsigned>(j));
  }

  __device__ __forceinline__ void order(int i, int j) {
    const bool swap = goes_before(score[j], index[j], score[i], index[i]);
    const float x = score[i];
    const int c = index[i];
    score[i] = swap ? score[j] : x;
    index[i] = swap ? index[j] : c;
    score[j] = swap ? x : score[j];
    index[j] = swap ? c : index[j];
  }

  // Without a branch: the entries after (x, c) move down by one.
  template <class Before>
  __device__ __forceinline__ void place(float x, int c, Before goes_before) {
    bool before[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) before[i] = goes_before(score[i], index[i]);
#pragma unroll
    for (int i = kCount - 1; i > 0; --i) {
      score[i] = before[i - 1] ? score[i - 1] : before[i] ? x : score[i];
      index[i] = before[i - 1] ? index[i - 1] : before[i] ? c : index[i];
    }
    score[0] = before[0] ? x : score[0];
    index[0] = before[0] ? c : index[0];
  }
};

}  // namespace kernelmint::hstu
