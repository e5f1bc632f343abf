// Matrix products of one warp with fp32 operands that come straight from memory, 16 bytes a load.
//
// A product sums over 16 indices at a time. Which of the 16 goes where in the instruction's
// operands does not matter as long as both sides agree, so lane 4g + t takes the four consecutive
// indices that one 16-byte load brings. The scores of 16 keys, as the first product leaves them in
// a lane, are then the left operand of the second one as they stand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "dtypes.h"
#include "ptx/math.cuh"
#include "ptx/mma.cuh"
#include "ptx/mma_tf32.cuh"
#include "ptx/shared_memory.cuh"

namespace kernelmint::hstu {

enum class Dot { tf32x3, bf16 };

// Left operand, 16 rows by 16: lane 4g + t has four elements of row g and four of row g + 8.
// Right operand, 16 by 8 columns: lane 4g + t has four elements of column g.
template <Dot kDot>
struct Operands;

// Each fp32 number is the sum of two TF32 numbers but for 2^-21 of it: its upper half, cut off and
// not rounded (rounding takes several instructions), and the upper half of the rest. The product of
// the two small parts, one of four, is left out.
struct Halves {
  std::uint32_t high, low;

  __device__ __forceinline__ explicit Halves(float x) {
    high = __float_as_uint(x) & 0xffffe000u;
    low = __float_as_uint(x - __uint_as_float(high));
  }
};

template <>
struct Operands<Dot::tf32x3> {
  struct Left {
    std::uint32_t high[2][4], low[2][4];

    __device__ __forceinline__ Left(float4 row, float4 row_8) {
      const float first[8] = {row.x, row.y, row.z, row.w, row_8.x, row_8.y, row_8.z, row_8.w};
#pragma unroll
      for (int step = 0; step < 2; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // (row, k), (row + 8, k), (row, k + 4), (row + 8, k + 4)
          const float x = first[i % 2 * 4 + step * 2 + i / 2];
          const Halves halves(x);
          high[step][i] = halves.high;
          low[step][i] = halves.low;
        }
      }
    }
  };

  struct Right {
    std::uint32_t high[2][2], low[2][2];

    __device__ __forceinline__ explicit Right(float4 column) {
      const float elements[4] = {column.x, column.y, column.z, column.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Halves halves(elements[i]);
        high[i / 2][i % 2] = halves.high;
        low[i / 2][i % 2] = halves.low;
      }
    }
  };

  // The small products go first, so that they do not round the sum so far by themselves.
  static __device__ __forceinline__ void multiply_add(float (&sum)[4], const Left& a,
                                                      const Right& b) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      ptx::mma_m16n8k8_tf32(sum, a.low[step], b.high[step]);
      ptx::mma_m16n8k8_tf32(sum, a.high[step], b.low[step]);
      ptx::mma_m16n8k8_tf32(sum, a.high[step], b.high[step]);
    }
  }
};

template <>
struct Operands<Dot::bf16> {
  struct Left {
    std::uint32_t packed[4];

    __device__ __forceinline__ Left(float4 row, float4 row_8)
        : packed{ptx::pack<kernelmint::bf16>(row.x, row.y),
                 ptx::pack<kernelmint::bf16>(row_8.x, row_8.y),
                 ptx::pack<kernelmint::bf16>(row.z, row.w),
                 ptx::pack<kernelmint::bf16>(row_8.z, row_8.w)} {}
    __device__ __forceinline__ Left(uint2 row, uint2 row_8)
        : packed{row.x, row_8.x, row.y, row_8.y} {}
  };

  struct Right {
    std::uint32_t packed[2];

    __device__ __forceinline__ explicit Right(float4 column)
        : packed{ptx::pack<kernelmint::bf16>(column.x, column.y),
                 ptx::pack<kernelmint::bf16>(column.z, column.w)} {}
    __device__ __forceinline__ Right(std::uint32_t low, std::uint32_t high) : packed{low, high} {}
  };

  static __device__ __forceinline__ void multiply_add(float (&sum)[4], const Left& a,
                                                      const Right& b) {
    ptx::mma_m16n8k16<kernelmint::bf16>(sum, a.packed, b.packed[0], b.packed[1]);
  }
};

__device__ __forceinline__ float4 load4(const float* from) {
  return *reinterpret_cast<const float4*>(from);
}

__device__ __forceinline__ void store4(float* to, float4 x) { *reinterpret_cast<float4*>(to) = x; }

// 16 rows of queries, in fp32 or already rounded to bf16. Lane 4g + t brings elements of the rows g
// and g + 8. They are kept in whichever form takes fewer registers: as they are for TF32, whose
// operands are twice as large; packed for bf16.
template <int A, Dot kDot>
class Queries {
 public:
  using Left = typename Operands<kDot>::Left;

  template <class T>
  __device__ __forceinline__ Queries(const T* row, const T* row_8, int t)
      : Queries(row, row_8, t, std::make_index_sequence<A / 16>{}) {}

  __device__ __forceinline__ Left slice(int i) const { return Left(kept_[i]); }

 private:
  struct Plain {
    float4 row, row_8;

    __device__ __forceinline__ Plain(float4 x, float4 y) : row(x), row_8(y) {}

    // The compiler must not split them once and for all, ahead of a loop.
    __device__ __forceinline__ explicit operator Left() const {
      return Left(unknown(row), unknown(row_8));
    }

    static __device__ __forceinline__ float4 unknown(float4 x) {
      asm volatile("" : "+f"(x.x), "+f"(x.y), "+f"(x.z), "+f"(x.w));
      return x;
    }
  };
  using Kept = std::conditional_t<kDot == Dot::bf16, Left, Plain>;

  static __device__ __forceinline__ float4 piece(const float* from) { return load4(from); }
  static __device__ __forceinline__ uint2 piece(const bf16* from) {
    return *reinterpret_cast<const uint2*>(from);
  }

  template <class T, std::size_t... I>
  __device__ __forceinline__ Queries(const T* row, const T* row_8, int t, std::index_sequence<I...>)
      : kept_{Kept(piece(row + 16 * I + 4 * t), piece(row_8 + 16 * I + 4 * t))...} {}

  Kept kept_[A / 16];
};

// The same rows read from shared memory whenever they are needed, which takes no registers.
template <int A, Dot kDot>
class SharedQueries {
 public:
  using Left = typename Operands<kDot>::Left;

  template <class T>
  __device__ __forceinline__ SharedQueries(const T* row, const T* row_8, int t)
      : row_(ptx::shared_address(row + 4 * t)), row_8_(ptx::shared_address(row_8 + 4 * t)) {}

  __device__ __forceinline__ Left slice(int i) const {
    if constexpr (kDot == Dot::bf16) {
      return Left(ptx::load_shared_8(row_ + 32 * i), ptx::load_shared_8(row_8_ + 32 * i));
    } else {
      return Left(as_floats(ptx::load_shared_16(row_ + 64 * i)),
                  as_floats(ptx::load_shared_16(row_8_ + 64 * i)));
    }
  }

 private:
  static __device__ __forceinline__ float4 as_floats(uint4 x) {
    return {__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z), __uint_as_float(x.w)};
  }

  std::uint32_t row_, row_8_;
};

// x / (1 + e^(-scale x)): SiLU(scale x) / scale. If the power overflows, it is -0: the limit.
__device__ __forceinline__ float silu(float x, float scale = 1.0f) {
  constexpr float kLog2E = 1.4426950408889634f;
  return x * ptx::reciprocal(1.0f + ptx::exp2(-kLog2E * scale * x));
}

// Right operands of the products with 16 keys: of one slice of a key's elements, the keys 0 to 7
// and 8 to 15; and of 32 columns of the values, four times eight.
template <Dot kDot>
struct RightPair {
  typename Operands<kDot>::Right keys_0, keys_8;
};
template <Dot kDot>
struct RightQuad {
  typename Operands<kDot>::Right columns[4];
};

// The operands of 16 keys that lie in memory as fp32: lane 4g + t reads the keys g and g + 8, and
// the values 2t, 2t + 1, 2t + 8 and 2t + 9. `key(j)` is the address of key j, `value(j, column)`
// the address of four elements of value j.
template <Dot kDot, class Key>
__device__ __forceinline__ RightPair<kDot> keys_from(int slice, int g, int t, Key key) {
  const int column = 16 * slice + 4 * t;
  using Right = typename Operands<kDot>::Right;
  return {Right(load4(key(g) + column)), Right(load4(key(8 + g) + column))};
}

template <Dot kDot, class Value>
__device__ __forceinline__ RightQuad<kDot> values_from(int chunk, int g, int t, Value value) {
  const int column = 32 * chunk + 4 * (g / 2) + 16 * (g % 2);
  const float4 v0 = load4(value(2 * t, column)), v1 = load4(value(2 * t + 1, column));
  const float4 v2 = load4(value(2 * t + 8, column)), v3 = load4(value(2 * t + 9, column));
  using Right = typename Operands<kDot>::Right;
  return {{Right({v0.x, v1.x, v2.x, v3.x}), Right({v0.y, v1.y, v2.y, v3.y}),
           Right({v0.z, v1.z, v2.z, v3.z}), Right({v0.w, v1.w, v2.w, v3.w})}};
}

// scores[i] += queries times the keys 8i to 8i + 7. `keys(slice)` is a RightPair.
template <int A, Dot kDot, class Queries, class Keys>
__device__ __forceinline__ void multiply_queries_keys(float (&scores)[2][4], const Queries& queries,
                                                      Keys keys) {
#pragma unroll
  for (int slice = 0; slice < A / 16; ++slice) {
    const auto left = queries.slice(slice);
    const RightPair<kDot> right = keys(slice);
    Operands<kDot>::multiply_add(scores[0], left, right.keys_0);
    Operands<kDot>::multiply_add(scores[1], left, right.keys_8);
  }
}

// out += weights times values. Of out[4 i + j], lane 4g + t has the rows g and g + 8 at the columns
// 32 i + 4 t + j and 32 i + 16 + 4 t + j: four lanes together write 64 bytes in a row.
// `values(chunk)` is a RightQuad.
template <int L, Dot kDot, class Values>
__device__ __forceinline__ void multiply_weights_values(float (&out)[L / 8][4],
                                                        const float (&weights)[2][4],
                                                        Values values) {
  const auto& w0 = weights[0];
  const auto& w1 = weights[1];
  const typename Operands<kDot>::Left left({w0[0], w0[1], w1[0], w1[1]},
                                           {w0[2], w0[3], w1[2], w1[3]});
#pragma unroll
  for (int chunk = 0; chunk < L / 32; ++chunk) {
    const RightQuad<kDot> right = values(chunk);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      Operands<kDot>::multiply_add(out[4 * chunk + j], left, right.columns[j]);
  }
}

__device__ __forceinline__ void store4(bf16* to, float4 x) {
  *reinterpret_cast<uint2*>(to) = {ptx::pack<bf16>(x.x, x.y), ptx::pack<bf16>(x.z, x.w)};
}

__device__ __forceinline__ float4 load4(const bf16* from) {
  const uint2 x = *reinterpret_cast<const uint2*>(from);
  return {__uint_as_float(x.x << 16), __uint_as_float(x.x & 0xffff0000u),
          __uint_as_float(x.y << 16), __uint_as_float(x.y & 0xffff0000u)};
}

// Writes a lane's part of 16 rows times factors: row g to `row`, row g + 8 to `row_8` (null: skip).
template <int L, class T>
__device__ __forceinline__ void store_rows(T* row, T* row_8, const float (&out)[L / 8][4], int t,
                                           float factor, float factor_8) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    T* to = half == 0 ? row : row_8;
    const float f = half == 0 ? factor : factor_8;
    if (to == nullptr) continue;
#pragma unroll
    for (int chunk = 0; chunk < L / 32; ++chunk) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int e = 2 * half + c;
        store4(to + 32 * chunk + 16 * c + 4 * t,
               {out[4 * chunk][e] * f, out[4 * chunk + 1][e] * f, out[4 * chunk + 2][e] * f,
                out[4 * chunk + 3][e] * f});
      }
    }
  }
}

}  // namespace kernelmint::hstu
