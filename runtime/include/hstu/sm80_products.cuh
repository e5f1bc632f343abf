// Matrix products of one warp with fp32 operands that come straight from memory, 16 bytes a load.
//
// A product sums over 16 indices at a time. Which of the 16 goes where in the instruction's
// operands does not matter as long as both sides agree, so lane 4g + t takes four consecutive ones:
// those that one 16-byte load brings. The scores of 16 keys, as the first product leaves them in a
// lane, are then the left operand of the second one as they stand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "dtypes.h"
#include "ptx/math.cuh"
#include "ptx/mma.cuh"
#include "ptx/mma_tf32.cuh"

namespace kernelmint::hstu {

enum class Dot { tf32x3, bf16 };

// Left operand, 16 rows by 16: lane 4g + t has four elements of row g and four of row g + 8.
// Right operand, 16 by 8 columns: lane 4g + t has four elements of column g.
template <Dot kDot>
struct Operands;

// Each fp32 number is the sum of two TF32 numbers but for 2^-21 of it: its upper half, cut off and
// not rounded (rounding takes several instructions), and the upper half of what is left. Of the
// four products the one of the two small parts is left out.
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

  // The small products go first, so that the sum so far is not rounded by them alone.
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
  };

  struct Right {
    std::uint32_t packed[2];

    __device__ __forceinline__ explicit Right(float4 column)
        : packed{ptx::pack<kernelmint::bf16>(column.x, column.y),
                 ptx::pack<kernelmint::bf16>(column.z, column.w)} {}
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

// 16 rows of queries. Lane 4g + t brings elements of the rows g and g + 8. They are kept in
// whichever form takes fewer registers: as they are for TF32, whose operands are twice as large;
// packed for bf16.
template <int A, Dot kDot>
class Queries {
 public:
  using Left = typename Operands<kDot>::Left;

  __device__ __forceinline__ Queries(const float* row, const float* row_8, int t, float scale)
      : Queries(row, row_8, t, scale, std::make_index_sequence<A / 16>{}) {}

  __device__ __forceinline__ Left slice(int i) const { return Left(kept_[i]); }

 private:
  struct Plain {
    float4 row, row_8;

    // The compiler must not split them once and for all, ahead of a loop: that is what is avoided.
    __device__ __forceinline__ explicit operator Left() const {
      return Left(unknown(row), unknown(row_8));
    }

    static __device__ __forceinline__ float4 unknown(float4 x) {
      asm volatile("" : "+f"(x.x), "+f"(x.y), "+f"(x.z), "+f"(x.w));
      return x;
    }
  };
  using Kept = std::conditional_t<kDot == Dot::bf16, Left, Plain>;

  template <std::size_t... I>
  __device__ __forceinline__ Queries(const float* row, const float* row_8, int t, float scale,
                                     std::index_sequence<I...>)
      : kept_{Kept{scaled(load4(row + 16 * I + 4 * t), scale),
                   scaled(load4(row_8 + 16 * I + 4 * t), scale)}...} {}

  static __device__ __forceinline__ float4 scaled(float4 x, float s) {
    return {x.x * s, x.y * s, x.z * s, x.w * s};
  }

  Kept kept_[A / 16];
};

// x / (1 + e^-x). Where e^-x overflows, the quotient is -0: the limit.
__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

// scores[i] += queries times the keys 8i to 8i + 7, of which lane 4g + t reads key 8i + g.
// `key(j)` is the address of key j.
template <int kKeys, int A, Dot kDot, class Key>
__device__ __forceinline__ void multiply_queries_keys(float (&scores)[kKeys / 8][4],
                                                      const Queries<A, kDot>& queries, int g, int t,
                                                      Key key) {
#pragma unroll
  for (int slice = 0; slice < A / 16; ++slice) {
    const auto left = queries.slice(slice);
#pragma unroll
    for (int i = 0; i < kKeys / 8; ++i) {
      const float* from = key(8 * i + g) + 16 * slice + 4 * t;
      Operands<kDot>::multiply_add(scores[i], left, typename Operands<kDot>::Right(load4(from)));
    }
  }
}

// out += weights times values. Of out[4 i + j], lane 4g + t has the rows g and g + 8 at the columns
// 32 i + 4 t + j and 32 i + 16 + 4 t + j: four lanes together write 64 bytes in a row.
// `value(j, column)` is the address of four elements of value j.
template <int kKeys, int L, Dot kDot, class Value>
__device__ __forceinline__ void multiply_weights_values(float (&out)[L / 8][4],
                                                        const float (&weights)[kKeys / 8][4], int g,
                                                        int t, Value value) {
#pragma unroll
  for (int i = 0; i < kKeys / 16; ++i) {
    const auto& w0 = weights[2 * i];
    const auto& w1 = weights[2 * i + 1];
    const typename Operands<kDot>::Left left({w0[0], w0[1], w1[0], w1[1]},
                                             {w0[2], w0[3], w1[2], w1[3]});
    const int key = 16 * i + 2 * t;
#pragma unroll
    for (int chunk = 0; chunk < L / 32; ++chunk) {
      const int column = 32 * chunk + 4 * (g / 2) + 16 * (g % 2);
      const float4 v0 = load4(value(key, column)), v1 = load4(value(key + 1, column));
      const float4 v2 = load4(value(key + 8, column)), v3 = load4(value(key + 9, column));
      using Right = typename Operands<kDot>::Right;
      Operands<kDot>::multiply_add(out[4 * chunk], left, Right({v0.x, v1.x, v2.x, v3.x}));
      Operands<kDot>::multiply_add(out[4 * chunk + 1], left, Right({v0.y, v1.y, v2.y, v3.y}));
      Operands<kDot>::multiply_add(out[4 * chunk + 2], left, Right({v0.z, v1.z, v2.z, v3.z}));
      Operands<kDot>::multiply_add(out[4 * chunk + 3], left, Right({v0.w, v1.w, v2.w, v3.w}));
    }
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
