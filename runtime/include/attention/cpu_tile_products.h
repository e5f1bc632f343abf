// The two matrix products of attention on AMX tiles, which multiply bf16 and add up in f32: for
// bf16 as it is, and for fp16 split without loss into two bf16 parts.
#pragma once

#include <type_traits>

#include "cpu_convert.h"
#include "cpu_vector.h"
#include "integers.h"

namespace kernelmint::attention {
inline namespace KERNELMINT_ISA {

// Clang called the macro __AMXBF16__ at first.
#if (defined(__AMX_BF16__) || defined(__AMXBF16__)) && defined(__AVX512BF16__)
#define KERNELMINT_AMX_TILES 1

using namespace kernelmint::cpu;

// A tile is 16 rows of 64 bytes. As the left operand: 16 rows, 32 columns of bf16. As the right
// one: 16 columns and 32 rows, each dword a column's elements of two neighbouring rows. As the
// result: 16 by 16 of f32. (Intel SDM vol. 1, chapter "Programming with Intel AMX".)
inline constexpr int kTile = 16;
inline constexpr int kTileDepth = 32;
using Tile = std::uint32_t[kTile][kTile];

struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t bytes_of_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// The tile loads are assembly that does not declare its reads: no store may move across.
KERNELMINT_ALWAYS_INLINE void compiler_fence() { asm volatile("" ::: "memory"); }

// A number as a sum of bf16 numbers, and the products of such parts that are formed: of part i and
// part j if i + j <= order. Part i is 2^-8 of the one before it, or less.
template <class T>
struct Parts;
template <>
struct Parts<bf16> {
  static constexpr int count = 1, score_order = 0, value_order = 0;
};
// 8 + 3 bits hold fp16's 11, so scores are as exact as in f32. A probability is cut to 16 bits.
template <>
struct Parts<fp16> {
  static constexpr int count = 2, score_order = 2, value_order = 1;
};

KERNELMINT_ALWAYS_INLINE U16 to_bf16(F32 low, F32 high) {
  return (U16)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
}

// Part I of 32 numbers: all but the last part are cut, not rounded, so the rest is exact.
template <int I, int Count>
KERNELMINT_ALWAYS_INLINE U16 part_of(F32 low, F32 high) {
  if constexpr (Count == 1) {
    return to_bf16(low, high);
  } else {
    const F32 cut_low = bit_cast<F32>(bit_cast<U32>(low) & 0xffff0000);
    const F32 cut_high = bit_cast<F32>(bit_cast<U32>(high) & 0xffff0000);
    if constexpr (I == 0) {
      return to_bf16(cut_low, cut_high);
    } else {
      return part_of<I - 1, Count - 1>(low - cut_low, high - cut_high);
    }
  }
}

template <int I>
KERNELMINT_ALWAYS_INLINE U16 load_part(const bf16* from) {
  return load_bits<U16>(from);
}

template <int I>
KERNELMINT_ALWAYS_INLINE U16 load_part(const fp16* from) {
  return part_of<I, Parts<fp16>::count>(load(from), load(from + kLanes));
}

// Returns whether there is an infinity or a NaN among `count` numbers, whole vectors of them.
KERNELMINT_ALWAYS_INLINE bool any_infinite(const fp16* from, int count) {
  const __m512i magnitude = _mm512_set1_epi16(0x7fff), infinity = _mm512_set1_epi16(0x7c00);
  __mmask32 found = 0;
  for (int i = 0; i < count; i += kTileDepth) {
    const __m512i bits = _mm512_and_si512(_mm512_loadu_si512(from + i), magnitude);
    found |= _mm512_cmpge_epu16_mask(bits, infinity);
  }
  return found != 0;
}

// Tiles 0 to 3 hold the results, 2 by 2: rows 0-15 and 16-31 by columns 0-15 and 16-31. Tiles 4 and
// 5 are the left operands, 6 and 7 the right ones. Without BothRows the second row of it is left
// out.
template <bool BothRows>
KERNELMINT_ALWAYS_INLINE void load_left(const void* from, std::ptrdiff_t stride) {
  _tile_loadd(4, from, stride);
  if constexpr (BothRows) {
    _tile_loadd(5, static_cast<const std::byte*>(from) + kTile * stride, stride);
  }
}

template <bool BothRows>
KERNELMINT_ALWAYS_INLINE void multiply_add(const Tile& right0, const Tile& right1) {
  _tile_loadd(6, right0, sizeof right0[0]);
  _tile_loadd(7, right1, sizeof right1[0]);
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  if constexpr (BothRows) {
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

template <class T, int D, int B_r, int B_c>
struct alignas(64) TileProducts {
  static constexpr int kParts = Parts<T>::count;
  // An infinity has no parts, inf - inf being NaN. So scores that it is in are made anew, of whole
  // numbers, and values are to be finite (cpu_hidden_values.h).
  static constexpr bool kSplits = kParts > 1;
  static constexpr int kStripRows = 2 * kTile;
  static constexpr int kFewRows = kParts == 1 ? 0 : 4;  // up to these, DirectProducts are faster
  static constexpr int kScoreStride = B_c + 16;  // not a power of two: rows spread over cache sets
  static_assert(B_r % kTile == 0 && B_c % kTileDepth == 0 && D % kTileDepth == 0, "whole tiles");
  static_assert(2 * kLanes == kTileDepth, "a pair of vectors is as long as a tile is deep");

  alignas(64) std::uint16_t queries[kParts][B_r][D];
  alignas(64) Tile keys[kParts][B_c / kTile][D / kTileDepth];
  alignas(64) Tile values[kParts][B_c / kTileDepth][D / kTile];
  alignas(64) float scores[kStripRows][kScoreStride];
  alignas(64) float out[B_r][D];
  struct Whole {        // the split operand, and its infinite values
    T queries[B_r][D];  // rows that hold an infinity
    bool is_infinite_query[B_r];
    const T* keys;
    std::int64_t key_stride;
    int num_keys, num_infinite_keys;
    std::int16_t infinite_keys[B_c];
  };
  struct Nothing {};
  [[no_unique_address]] std::conditional_t<kSplits, Whole, Nothing> whole;

  void begin() {
    alignas(64) static constexpr TileConfig config;
    _tile_loadconfig(&config);
  }
  void end() { _tile_release(); }

  void load_query(int row, const T* q) {
    for (int d = 0; d < D; d += kTileDepth) {
      for_parts([&]<int P>() __attribute__((always_inline)) {
        store_bits(&queries[P][row][d], load_part<P>(q + d));
      });
    }
    if constexpr (kSplits) {
      whole.is_infinite_query[row] = any_infinite(q, D);
      if (whole.is_infinite_query[row])
        __builtin_memcpy(whole.queries[row], q, sizeof whole.queries[row]);
    }
  }

  // `count` keys and values, zeros after them up to a whole tile's depth.
  void load_keys_values(const T* k, std::int64_t k_stride, const T* v, std::int64_t v_stride,
                        int count) {
    const auto row = [count](const T* of, std::int64_t stride, int i)
                         __attribute__((always_inline)) {
                           alignas(64) static constexpr T zeros[D] = {};
                           return i < count ? of + i * stride : zeros;
                         };
    for (int first = 0; first < round_up(count); first += kTile) {
      for (int d = 0; d < D; d += kTileDepth) {
        for_parts([&]<int P>() __attribute__((always_inline)) {
          U32 pairs[kTile];  // row: a key; dword: its elements 2i and 2i + 1
#pragma GCC unroll 16
          for (int i = 0; i < kTile; ++i) {
            pairs[i] = bit_cast<U32>(load_part<P>(row(k, k_stride, first + i) + d));
          }
          transpose(pairs);
          Tile& tile = keys[P][first / kTile][d / kTileDepth];
#pragma GCC unroll 16
          for (int i = 0; i < kTile; ++i) store_bits(tile[i], pairs[i]);
        });
      }
    }
    if constexpr (kSplits) {
      whole.keys = k;
      whole.key_stride = k_stride;
      whole.num_keys = count;
      whole.num_infinite_keys = 0;
      for (int key = 0; key < count; ++key) {
        if (any_infinite(k + key * k_stride, D))
          whole.infinite_keys[whole.num_infinite_keys++] = static_cast<std::int16_t>(key);
      }
    }
    for (int key = 0; key < round_up(count); key += 2) {
      const T* even = row(v, v_stride, key);
      const T* odd = row(v, v_stride, key + 1);
      for (int d = 0; d < D; d += 2 * kTile) {
        for_parts([&]<int P>() __attribute__((always_inline)) {
          const U16 a = load_part<P>(even + d), b = load_part<P>(odd + d);
          Tile* tiles = &values[P][key / kTileDepth][d / kTile];
          store_bits(tiles[0][key % kTileDepth / 2], interleave_low(a, b));
          store_bits(tiles[1][key % kTileDepth / 2], interleave_high(a, b));
        });
      }
    }
  }

  // scores[0 .. rows) = rows of `queries` from `first` on, times the first `count` keys.
  void multiply_queries_keys(int first, int rows, int count) {
    if (rows > kTile) {
      multiply_queries_keys<true>(first, count);
    } else {
      multiply_queries_keys<false>(first, count);
    }
    if constexpr (kSplits) {
      for (int r = 0; r < rows; ++r) {
        if (whole.is_infinite_query[first + r]) {
          for (int key = 0; key < whole.num_keys; ++key) scores[r][key] = score(first + r, key);
        } else {
          for (int i = 0; i < whole.num_infinite_keys; ++i)
            scores[r][whole.infinite_keys[i]] = score(first + r, whole.infinite_keys[i]);
        }
      }
    }
  }

  KERNELMINT_ALWAYS_INLINE void put_probabilities(int row, int key, F32 p0, F32 p1) {
    for_parts([&]<int P>() __attribute__((always_inline)) {
      store_bits(&scores[row][key + P * kTile], part_of<P, kParts>(p0, p1));
    });
  }

  // out[first .. first + rows) += probabilities of the first `count` keys, times their values.
  void multiply_probabilities_values(int first, int rows, int count) {
    if (rows > kTile) {
      multiply_probabilities_values<true>(first, count);
    } else {
      multiply_probabilities_values<false>(first, count);
    }
  }

  // Places of the operands, for tracing.
  float query(int row, int d) const {
    return sum_of_parts([&](int p) { return &queries[p][row][d]; });
  }
  float key(int i, int d) const {
    return sum_of_parts([&](int p) {
      const Tile& tile = keys[p][i / kTile][d / kTileDepth];
      return half_of(tile[d % kTileDepth / 2][i % kTile], d % 2);
    });
  }
  float value(int i, int d) const {
    return sum_of_parts([&](int p) {
      const Tile& tile = values[p][i / kTileDepth][d / kTile];
      return half_of(tile[i % kTileDepth / 2][d % kTile], i % 2);
    });
  }
  float probability(int row, int key) const {
    return sum_of_parts([&](int p) {
      return half_of(scores[row][key / kTileDepth * kTileDepth + p * kTile + key % kTileDepth / 2],
                     key % 2);
    });
  }

  static constexpr int round_up(int count) { return kernelmint::round_up(count, kTileDepth); }

 private:
  // A score of whole numbers.
  float score(int row, int key) const {
    float sum = 0;
    for (int d = 0; d < D; ++d) {
      const float q = whole.is_infinite_query[row] ? element(whole.queries[row], d) : query(row, d);
      sum += q * element(whole.keys + key * whole.key_stride, d);
    }
    return sum;
  }
  static float element(const T* row, int d) { return load(row + d / kLanes * kLanes)[d % kLanes]; }

  // The lower or the upper bf16 of four bytes.
  static const std::byte* half_of(const auto& four_bytes, int upper) {
    return reinterpret_cast<const std::byte*>(&four_bytes) + 2 * upper;
  }

  template <class AddressOfPart>
  static float sum_of_parts(AddressOfPart address) {
    float sum = 0;
    for (int p = 0; p < kParts; ++p) {
      std::uint16_t bits;
      __builtin_memcpy(&bits, address(p), sizeof bits);
      sum += bit_cast<float>(std::uint32_t{bits} << 16);
    }
    return sum;
  }

  template <class Body, int... P>
  KERNELMINT_ALWAYS_INLINE static void for_parts(Body body, std::integer_sequence<int, P...>) {
    (body.template operator()<P>(), ...);
  }
  template <class Body>
  KERNELMINT_ALWAYS_INLINE static void for_parts(Body body) {
    for_parts(body, std::make_integer_sequence<int, kParts>{});
  }

  template <bool BothRows>
  void multiply_queries_keys(int first, int count) {
    compiler_fence();
    for (int key = 0; key < count; key += 2 * kTile) {
      _tile_zero(0);
      _tile_zero(1);
      if constexpr (BothRows) {
        _tile_zero(2);
        _tile_zero(3);
      }
      for (int d = 0; d < D; d += kTileDepth) {
        for (int p = 0; p < kParts; ++p) {
          load_left<BothRows>(&queries[p][first][d], sizeof queries[p][first]);
          for (int r = 0; r < kParts && p + r <= Parts<T>::score_order; ++r) {
            multiply_add<BothRows>(keys[r][key / kTile][d / kTileDepth],
                                   keys[r][key / kTile + 1][d / kTileDepth]);
          }
        }
      }
      constexpr std::ptrdiff_t kStride = sizeof scores[0];
      _tile_stored(0, &scores[0][key], kStride);
      _tile_stored(1, &scores[0][key + kTile], kStride);
      if constexpr (BothRows) {
        _tile_stored(2, &scores[kTile][key], kStride);
        _tile_stored(3, &scores[kTile][key + kTile], kStride);
      }
    }
    compiler_fence();
  }

  template <bool BothRows>
  void multiply_probabilities_values(int first, int count) {
    compiler_fence();
    for (int d = 0; d < D; d += 2 * kTile) {
      constexpr std::ptrdiff_t kStride = sizeof out[0];
      _tile_loadd(0, &out[first][d], kStride);
      _tile_loadd(1, &out[first][d + kTile], kStride);
      if constexpr (BothRows) {
        _tile_loadd(2, &out[first + kTile][d], kStride);
        _tile_loadd(3, &out[first + kTile][d + kTile], kStride);
      }
      for (int key = 0; key < count; key += kTileDepth) {
        for (int p = 0; p < kParts; ++p) {
          load_left<BothRows>(&scores[0][key + p * kTile], sizeof scores[0]);
          for (int r = 0; r < kParts && p + r <= Parts<T>::value_order; ++r) {
            multiply_add<BothRows>(values[r][key / kTileDepth][d / kTile],
                                   values[r][key / kTileDepth][d / kTile + 1]);
          }
        }
      }
      _tile_stored(0, &out[first][d], kStride);
      _tile_stored(1, &out[first][d + kTile], kStride);
      if constexpr (BothRows) {
        _tile_stored(2, &out[first + kTile][d], kStride);
        _tile_stored(3, &out[first + kTile][d + kTile], kStride);
      }
    }
    compiler_fence();
  }
};

#endif

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::attention
