// Dropout on the CPU: the random bits of a tile, drawn before its probabilities are made.
#pragma once

#include <type_traits>
#include <utility>

#include "attention/dropout.h"
#include "cpu_vector.h"
#include "dtypes.h"
#include "integers.h"

namespace kernelmint::attention {
inline namespace KERNELMINT_ISA {

using namespace kernelmint::cpu;

// The dropout of a call: what is the same for all its elements.
struct Dropout {
  std::int64_t seed, offset;
  std::int32_t threshold;
  float scale;

  template <class Args>
  explicit Dropout(const Args& args)
      : seed(*args.rng.template at<const std::int64_t>(0)),
        offset(*args.rng.template at<const std::int64_t>(1)),
        threshold(drop_threshold(args.dropout_p)),
        scale(keep_scale(args.dropout_p)) {}

  DropoutHead of(std::int64_t head) const { return {seed, offset, head}; }
};

// The random bits of a block of B_r queries and B_c keys.
template <int B_r, int B_c>
struct DrawnBits {
  static constexpr int kAtOnce = 4 * kLanes;  // keys of a row, of kLanes units
  // A block's first key may be any: columns begin at a multiple of 16.
  alignas(64) std::uint16_t drawn[B_r + 1][round_up(B_c + 16, kAtOnce)];
  const std::uint16_t* columns;  // the column of the block's first key

  void begin_bits(std::int64_t first_key) { columns = drawn[0] + first_key % 16; }

  // Draws the bits of query `query` in row `row`, and, if `other` is a row, of the other query of
  // its units in that.
  void draw(const DropoutHead& head, std::int64_t query, std::int64_t first_key, int count, int row,
            int other) {
    const int upper = query / 8 % 2;
    std::uint16_t* of_rows[2] = {drawn[upper == 0 ? row : B_r], drawn[upper == 0 ? B_r : row]};
    if (other >= 0) of_rows[1 - upper] = drawn[other];
    const std::int64_t begin = first_key / 16 * 16;
    for (int key = 0; key < first_key - begin + count; key += kAtOnce) {
      U32 words[4];
      draw_units(head, query_unit(query), key_unit(begin + key), words);
      for (int half = 0; half < 2; ++half) {
        store_bits(of_rows[half] + key, in_order<0>(words[2 * half], words[2 * half + 1]));
        store_bits(of_rows[half] + key + kAtOnce / 2,
                   in_order<1>(words[2 * half], words[2 * half + 1]));
      }
    }
  }

  // A vector of a row's values at the block's keys from `key` on: 0 where they are dropped.
  KERNELMINT_ALWAYS_INLINE F32 kept(int row, int key, std::int32_t threshold, F32 values) const {
    constexpr auto kStride = sizeof(drawn[0]) / sizeof(drawn[0][0]);
    const auto bits = load_bits<HalfU16>(columns + static_cast<std::size_t>(row) * kStride + key);
    return __builtin_convertvector(bits, I32) >= threshold ? values : F32{};
  }

 private:
  using U64 = Vector<std::uint64_t>;

  // The words of kLanes units of keys. Units of even numbers are computed in one vector of wide
  // lanes, the others in another.
  KERNELMINT_ALWAYS_INLINE static void draw_units(const DropoutHead& head, std::uint32_t of_queries,
                                                  std::uint32_t of_keys, U32 (&words)[4]) {
    const U64 numbers = bit_cast<U64>(bit_cast<U32>(lane_numbers()) + of_keys);
    const U64 low = U64{} + 0xFFFFFFFFu;
    U64 even[4] = {U64{} + head.counter[0], U64{} + head.counter[1], numbers & low,
                   U64{} + of_queries};
    U64 odd[4] = {even[0], even[1], numbers >> 32, even[3]};
    const auto multiply = [](U64 a, std::uint32_t factor, U64& high)
                              __attribute__((always_inline)) {
                                const U64 product = wide_product(a, U64{} + factor);
                                high = product >> 32;
                                return product;
                              };
    philox(even, head.key, multiply);
    philox(odd, head.key, multiply);
    for (int i = 0; i < 4; ++i) words[i] = bit_cast<U32>((even[i] & low) | (odd[i] << 32));
  }

  // The products of the lower halves of lanes.
  KERNELMINT_ALWAYS_INLINE static U64 wide_product(U64 a, U64 b) {
#if defined(KERNELMINT_AVX512_VECTORS)
    return (U64)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined(KERNELMINT_AVX2_VECTORS)
    return (U64)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
    return (U64)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
    return (a & 0xFFFFFFFFu) * (b & 0xFFFFFFFFu);
#endif
  }

  // A row's bits in the order of its keys: of each tile's four units one word, then the other. The
  // lower or the upper half of the tiles.
  template <int Half>
  KERNELMINT_ALWAYS_INLINE static U32 in_order(U32 first, U32 second) {
    return [&]<int... I>(std::integer_sequence<int, I...>) {
      return shuffle(first, second, std::integer_sequence<int, place(Half * kLanes + I)...>{});
    }(std::make_integer_sequence<int, kLanes>{});
  }
  static constexpr int place(int i) { return i / 8 * 4 + i % 4 + i / 4 % 2 * kLanes; }
};

// The bits of kernels without dropout.
struct NoBits {};

template <class Args, int B_r, int B_c>
using BitsOf = std::conditional_t<DropsOut<Args>, DrawnBits<B_r, B_c>, NoBits>;

// Products whose probabilities of a strip of rows, from `first` on, drop out.
template <class Products, class Bits>
struct DroppingProducts {
  Products& products;
  decltype(Products::scores)& scores;
  const Bits& bits;
  int first;
  std::int32_t threshold;

  KERNELMINT_ALWAYS_INLINE void put_probabilities(int i, int key, F32 p0, F32 p1) {
    products.put_probabilities(i, key, bits.kept(first + i, key, threshold, p0),
                               bits.kept(first + i, key + kLanes, threshold, p1));
  }
};

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::attention
