// Matrix products of one warp with fp32 operands that come straight from memory, 16 bytes a load.
//
// A product sums over 16 indices at a time. Which of the 16 goes where in the instruction's
// operands does not matter as long as both sides agree, so lane 4g + t takes four consecutive ones:
// those that one 16-byte load brings. The scores of 16 keys, as the first product leaves them in a
// lane, are then the left operand of the second one as they stand.
#pragma once

#include <cstddef>
#include <cstdint>
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

// Each fp32 number is the sum of two TF32 numbers but for 2^-22 of it; of the four products the one
// of the two small parts is left out.
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
          high[step][i] = ptx::to_tf32(x);
          low[step][i] = ptx::to_tf32(x - __uint_as_float(high[step][i]));
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
        high[i / 2][i % 2] = ptx::to_tf32(elements[i]);
        low[i / 2][i % 2] = ptx::to_tf32(elements[i] - __uint_as_float(high[i / 2][i % 2]));
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

// 16 rows of queries as left operands. Lane 4g + t brings elements of the rows g and g + 8.
template <int A, Dot kDot>
struct Queries {
  typename Operands<kDot>::Left slices[A / 16];

  __device__ __forceinline__ Queries(const float* row, const float* row_8, int t, float scale)
      : Queries(row, row_8, t, scale, std::make_index_sequence<A / 16>{}) {}

 private:
  template <std::size_t... I>
  __device__ __forceinline__ Queries(const float* row, const float* row_8, int t, float scale,
                                     std::index_sequence<I...>)
      : slices{{scaled(load4(row + 16 * I + 4 * t), scale),
                scaled(load4(row_8 + 16 * I + 4 * t), scale)}...} {}

  static __device__ __forceinline__ float4 scaled(float4 x, float s) {
    return {x.x * s, x.y * s, x.z * s, x.w * s};
  }
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
  for (int i = 0; i < kKeys / 8; ++i) {
    const float* row = key(8 * i + g);
#pragma unroll
    for (int slice = 0; slice < A / 16; ++slice) {
      const typename Operands<kDot>::Right operand(load4(row + 16 * slice + 4 * t));
      Operands<kDot>::multiply_add(scores[i], queries.slices[slice], operand);
    }
  }
}

// out += weights times values. Of out[4 i + j], lane 4g + t has the rows g and g + 8 at the columns
// 32 i + 8 t + j and 32 i + 8 t + 4 + j: eight in a row.
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
    const float* rows[4] = {value(16 * i + 2 * t), value(16 * i + 2 * t + 1),
                            value(16 * i + 2 * t + 8), value(16 * i + 2 * t + 9)};
#pragma unroll
    for (int chunk = 0; chunk < L / 32; ++chunk) {
      const int column = 32 * chunk + 4 * g;
      const float4 v0 = load4(rows[0] + column), v1 = load4(rows[1] + column);
      const float4 v2 = load4(rows[2] + column), v3 = load4(rows[3] + column);
      using Right = typename Operands<kDot>::Right;
      Operands<kDot>::multiply_add(out[4 * chunk], left, Right({v0.x, v1.x, v2.x, v3.x}));
      Operands<kDot>::multiply_add(out[4 * chunk + 1], left, Right({v0.y, v1.y, v2.y, v3.y}));
      Operands<kDot>::multiply_add(out[4 * chunk + 2], left, Right({v0.z, v1.z, v2.z, v3.z}));
      Operands<kDot>::multiply_add(out[4 * chunk + 3], left, Right({v0.w, v1.w, v2.w, v3.w}));
    }
  }
}

// Writes a lane's part of 16 rows times factors: row g to `row`, row g + 8 to `row_8` (null: skip).
template <int L>
__device__ __forceinline__ void store_rows(float* row, float* row_8, const float (&out)[L / 8][4],
                                           int t, float factor, float factor_8) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float* to = half == 0 ? row : row_8;
    const float f = half == 0 ? factor : factor_8;
    if (to == nullptr) continue;
#pragma unroll
    for (int chunk = 0; chunk < L / 32; ++chunk) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int e = 2 * half + c;
        store4(to + 32 * chunk + 8 * t + 4 * c,
               {out[4 * chunk][e] * f, out[4 * chunk + 1][e] * f, out[4 * chunk + 2][e] * f,
                out[4 * chunk + 3][e] * f});
      }
    }
  }
}

}  // namespace kernelmint::hstu
