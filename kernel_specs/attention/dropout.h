// Dropout of attention's probabilities, the same for all kernels: whether element (sequence b,
// query head h, query i, key j) is kept is a pure function of (seed, offset, b, h, i, j, p), where
// i and j are counted from the sequence's first query and its first key, padding included.
//
// Random numbers are Philox4x32-10's (Salmon et al. 2011, "Parallel random numbers: as easy as 1,
// 2, 3"), with the key and the counter of PyTorch's at::Philox4_32(seed, subsequence, offset): the
// subsequence is that of a unit of elements, the offset is the call's plus b * H + h. A call of
// `philox` serves a unit of eight elements by 16 bits each: an element is dropped if its bits are
// less than p * 2^16.
//
// A unit is {i, i + 8} x {j, j + 1, j + 8, j + 9} of a 16 x 16 tile, with i % 16 < 8 and j % 8
// even: what a thread holds of the tile in the accumulators of mma and wgmma whose rows are
// queries. Where rows are keys, a thread holds halves of two units, whose other halves lie 4 lanes
// from it: each lane computes one of the units, a bit for each element, and a shuffle exchanges the
// bits of 32 elements. Two units are computed beside each other, and share additions to the key.
// Units of four elements by 32 bits would need no shuffles, and take more instructions; units of
// sixteen by 8 bits, as FlashAttention's, fewer, but round p to multiples of 1/256.
#pragma once

#include <cstdint>

#include "attributes.h"

namespace kernelmint::attention {

// The arguments of a family that drops out.
template <class Args>
concept DropsOut = requires(const Args& args) { args.dropout_p; };

// The factor of the probabilities that are kept.
KERNELMINT_HOST_DEVICE KERNELMINT_ALWAYS_INLINE float keep_scale(float p) {
  return p < 1 ? 1 / (1 - p) : 0;
}

// The same of a call; 1 without dropout.
template <class Args>
KERNELMINT_HOST_DEVICE KERNELMINT_ALWAYS_INLINE float keep_scale_of(const Args& args) {
  if constexpr (DropsOut<Args>) return keep_scale(args.dropout_p);
  return 1;
}

// An element is kept if its 16 bits are not less.
KERNELMINT_HOST_DEVICE KERNELMINT_ALWAYS_INLINE std::int32_t drop_threshold(float p) {
  return static_cast<std::int32_t>(p * 65536.0f + 0.5f);
}

// The numbers of a unit among those of queries, and of keys. Word 2 * (i / 8 % 2) + j / 8 % 2 has
// the bits of an element, in its lower half if j is even.
KERNELMINT_HOST_DEVICE KERNELMINT_ALWAYS_INLINE std::uint32_t query_unit(std::int64_t i) {
  return static_cast<std::uint32_t>(i / 16 * 8 + i % 8);
}
KERNELMINT_HOST_DEVICE KERNELMINT_ALWAYS_INLINE std::uint32_t key_unit(std::int64_t j) {
  return static_cast<std::uint32_t>(j / 16 * 4 + j % 8 / 2);
}

// The key, and the two words of the counter that a head of a sequence has.
struct DropoutHead {
  std::uint32_t key[2], counter[2];

  KERNELMINT_HOST_DEVICE KERNELMINT_ALWAYS_INLINE DropoutHead(std::int64_t seed,
                                                              std::int64_t offset,
                                                              std::int64_t head) {
    const auto of_seed = static_cast<std::uint64_t>(seed);
    const std::uint64_t first =
        static_cast<std::uint64_t>(offset) + static_cast<std::uint64_t>(head);
    key[0] = static_cast<std::uint32_t>(of_seed);
    key[1] = static_cast<std::uint32_t>(of_seed >> 32);
    counter[0] = static_cast<std::uint32_t>(first);
    counter[1] = static_cast<std::uint32_t>(first >> 32);
  }
};

// Philox4x32-10: replaces a counter by its random words. `multiply(a, m, high)` returns the lower
// word of a product and sets the upper one, of words or of vectors of them.
template <class Word, class Multiply>
KERNELMINT_HOST_DEVICE KERNELMINT_ALWAYS_INLINE void philox(Word (&counter)[4],
                                                            const std::uint32_t (&key)[2],
                                                            Multiply multiply) {
  std::uint32_t first = key[0], second = key[1];
#if defined(__CUDACC__)
#pragma unroll
#endif
  for (int round = 0; round < 10; ++round) {
    Word high[2];
    const Word low[2] = {multiply(counter[0], 0xD2511F53u, high[0]),
                         multiply(counter[2], 0xCD9E8D57u, high[1])};
    counter[0] = high[1] ^ counter[1] ^ first;
    counter[1] = low[1];
    counter[2] = high[0] ^ counter[3] ^ second;
    counter[3] = low[0];
    first += 0x9E3779B9u;
    second += 0xBB67AE85u;
  }
}

}  // namespace kernelmint::attention
