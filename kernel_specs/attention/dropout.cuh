// Dropout of the scores of a warp, as tensor cores leave them in registers.
#pragma once

#include <cstdint>

#include "attention/dropout.h"
#include "register_tile.cuh"

namespace kernelmint::attention {

// Words of units that are drawn together, so that they share the additions to the key.
template <int kCount>
struct Words {
  std::uint32_t of[kCount];
};
template <int kCount>
__device__ __forceinline__ Words<kCount> operator^(const Words<kCount>& a, const Words<kCount>& b) {
  Words<kCount> result;
  unroll<kCount>([&](int i) { result.of[i] = a.of[i] ^ b.of[i]; });
  return result;
}
template <int kCount>
__device__ __forceinline__ Words<kCount> operator^(const Words<kCount>& a, std::uint32_t b) {
  Words<kCount> result;
  unroll<kCount>([&](int i) { result.of[i] = a.of[i] ^ b; });
  return result;
}

// The random words of units: `of_queries` and `of_keys` of the first, the others so far after it.
template <int kCount>
__device__ __forceinline__ void draw_units(const DropoutHead& head, std::uint32_t of_queries,
                                           std::uint32_t of_keys, int next_queries, int next_keys,
                                           Words<kCount> (&words)[4]) {
  unroll<kCount>([&](int i) {
    words[0].of[i] = head.counter[0], words[1].of[i] = head.counter[1];
    words[2].of[i] = of_keys + i * next_keys, words[3].of[i] = of_queries + i * next_queries;
  });
  philox(words, head.key, [](const Words<kCount>& a, std::uint32_t factor, Words<kCount>& high) {
    Words<kCount> low;
    unroll<kCount>([&](int i) {
      const std::uint64_t product = std::uint64_t{a.of[i]} * factor;
      high.of[i] = static_cast<std::uint32_t>(product >> 32);
      low.of[i] = static_cast<std::uint32_t>(product);
    });
    return low;
  });
}

// The key and the counter of a head of a sequence.
template <class Args>
__device__ __forceinline__ DropoutHead dropout_of(const Args& args, int sequence, int head) {
  const auto* rng = args.rng.template at<const std::int64_t>(0);
  return {rng[0], rng[args.rng.stride[0]], std::int64_t{sequence} * args.H + head};
}

// Returns whether a single element is kept.
__device__ inline bool is_kept(const DropoutHead& head, std::uint32_t threshold, int query,
                               int key) {
  Words<1> words[4];
  draw_units(head, query_unit(query), key_unit(key), 0, 0, words);
  const Words<1> of_keys = key / 8 % 2 == 0 ? (query / 8 % 2 == 0 ? words[0] : words[2])
                                            : (query / 8 % 2 == 0 ? words[1] : words[3]);
  return (key % 2 == 0 ? of_keys.of[0] & 0xFFFFu : of_keys.of[0] >> 16) >= threshold;
}

__device__ __forceinline__ std::uint32_t half_of(std::uint32_t word, int half) {
  return half == 0 ? word & 0xFFFFu : word >> 16;
}

// drop(row, column) for each score that is dropped of `kColumns` keys from `key` on and of the
// lane's queries `query` and query + 8, as RegisterTile counts them: rows are queries. The tile's
// first query and first key are multiples of 16.
template <int kColumns, class Drop>
__device__ __forceinline__ void drop_out(const DropoutHead& head, std::uint32_t threshold,
                                         int query, int first_key, const Drop& drop) {
  const std::uint32_t of_queries = query_unit(query), of_keys = first_key / 4 + threadIdx.x % 4;
  constexpr int kTogether = kColumns / 16 % 2 == 0 ? 2 : 1;
  unroll<kColumns / 16 / kTogether>([&](int group) {
    Words<kTogether> words[4];
    draw_units(head, of_queries, of_keys + 4 * kTogether * group, 0, 4, words);
    unroll<8 * kTogether>([&](int at) {
      const int i = at % 8, tile = group * kTogether + at / 8;
      if (half_of(words[i / 2].of[at / 8], i % 2) < threshold) drop(i / 4, 4 * tile + i % 4);
    });
  });
}

// A bit for each of a lane's scores that is dropped, of 2 * kScores queries from `first_query` on
// and of the lane's keys `key` and key + 8: rows are keys. Lanes that are 4 apart have neighbouring
// keys, which lie in the same units: each lane draws those of one of its two neighbouring queries,
// and one shuffle exchanges the bits of 64 queries.
template <int kScores>
__device__ __forceinline__ void find_dropped(const DropoutHead& head, std::uint32_t threshold,
                                             int first_query, int key,
                                             std::uint32_t (&dropped)[(kScores + 31) / 32]) {
  const bool is_odd = key % 2 == 1;
  const std::uint32_t of_keys = key_unit(key),
                      of_queries = first_query / 2 + threadIdx.x % 4 * 2 + is_odd;
  // The greatest word whose upper half is dropped.
  const std::uint32_t greatest = (threshold << 16) - 1;
  unroll<(kScores + 31) / 32>([&](int at) {
    // Bit 8 * unit + 2 * word + half, of a lane's own units.
    std::uint32_t drawn = 0;
    unroll<2>([&](int pair) {
      Words<2> words[4];
      draw_units(head, of_queries + 8 * (4 * at + 2 * pair), of_keys, 8, 0, words);
      unroll<8>([&](int i) {
        const int unit = 2 * pair + i / 4, bit = 8 * unit + i % 4 * 2;
        if (4 * at + unit >= kScores / 8) return;
        const std::uint32_t word = words[i % 4].of[i / 4];
        if (word << 16 <= greatest) drawn |= 1u << bit;
        if (word <= greatest) drawn |= 2u << bit;
      });
    });
    // The bit of a pair that is the lane's: the even key's of an even lane. The other one is that
    // of the lane's other query, and goes there.
    const std::uint32_t theirs = __shfl_xor_sync(~0u, drawn, 4);
    dropped[at] = is_odd ? (drawn & 0xAAAAAAAA) | (theirs >> 1 & 0x55555555)
                         : (drawn & 0x55555555) | (theirs << 1 & 0xAAAAAAAA);
    if (threshold == 0) dropped[at] = 0;
  });
}

}  // namespace kernelmint::attention
