// Where the right operands of products come from: rows in memory as they are, or packed in advance.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "hstu/sm80_products.cuh"

namespace kernelmint::hstu {

// Keys and values that lie in memory as fp32, at the given distances; rows past `last` repeat it.
template <Dot kDot>
struct RowsInMemory {
  const float *k, *v;
  std::int64_t k_distance, v_distance;
  int last;

  __device__ __forceinline__ RightPair<kDot> keys(int step, int slice, int g, int t) const {
    return keys_from<kDot>(slice, g, t,
                           [&](int j) { return k + min(16 * step + j, last) * k_distance; });
  }
  __device__ __forceinline__ RightQuad<kDot> values(int step, int chunk, int g, int t) const {
    return values_from<kDot>(chunk, g, t, [&](int j, int column) {
      return v + min(16 * step + j, last) * v_distance + column;
    });
  }
};

// Keys and values as right operands of products in bf16, sixteen rows after sixteen rows. A lane
// loads 16 bytes at a time, next to its neighbours'.
template <int A, int L>
class PackedRows {
 public:
  static constexpr int kKeys = 2 * A, kValues = 2 * L;  // chunks of 16 bytes in sixteen rows

  __device__ __forceinline__ PackedRows(const uint4* keys, const uint4* values, int g, int t)
      : keys_(keys + 4 * g + t), values_(values + value_lane(g, t)) {}

  __device__ __forceinline__ RightPair<Dot::bf16> keys(int step, int slice, int, int) const {
    const uint4 x = keys_[step * kKeys + 32 * slice];
    return {Right(x.x, x.y), Right(x.z, x.w)};
  }
  __device__ __forceinline__ RightQuad<Dot::bf16> values(int step, int chunk, int, int) const {
    const uint4 x = values_[step * kValues + 64 * chunk];
    const uint4 y = values_[step * kValues + 64 * chunk + 32];
    return {{Right(x.x, x.y), Right(x.z, x.w), Right(y.x, y.y), Right(y.z, y.w)}};
  }

  // Four columns, from `column` on, of the rows 2 pair, 2 pair + 1, 2 pair + 8 and 2 pair + 9 of
  // sixteen.
  static __device__ __forceinline__ void store_keys(uint4* to, int pair, int column,
                                                    const float4 (&x)[4]) {
    to += column / 16 * 32 + 8 * pair + column % 16 / 4;
    to[0] = {packed(x[0].x, x[0].y), packed(x[0].z, x[0].w), packed(x[2].x, x[2].y),
             packed(x[2].z, x[2].w)};
    to[4] = {packed(x[1].x, x[1].y), packed(x[1].z, x[1].w), packed(x[3].x, x[3].y),
             packed(x[3].z, x[3].w)};
  }
  static __device__ __forceinline__ void store_values(uint4* to, int pair, int column,
                                                      const float4 (&x)[4]) {
    to += column / 32 * 64 + value_lane(column_lane(column), pair);
    to[0] = {packed(x[0].x, x[1].x), packed(x[2].x, x[3].x), packed(x[0].y, x[1].y),
             packed(x[2].y, x[3].y)};
    to[32] = {packed(x[0].z, x[1].z), packed(x[2].z, x[3].z), packed(x[0].w, x[1].w),
              packed(x[2].w, x[3].w)};
  }

  // The same four columns of one row.
  static __device__ __forceinline__ void store_key(uint4* to, int row, int column, float4 x) {
    to += row / 16 * kKeys + column / 16 * 32 + row % 8 * 4 + column % 16 / 4;
    reinterpret_cast<uint2*>(to)[row / 8 % 2] = {packed(x.x, x.y), packed(x.z, x.w)};
  }
  static __device__ __forceinline__ void store_value(uint4* to, int row, int column, float4 x) {
    to += row / 16 * kValues + column / 32 * 64 + value_lane(column_lane(column), row % 8 / 2);
    const int place = row % 2 + row / 8 % 2 * 2;
    bf16* first = reinterpret_cast<bf16*>(to) + place;
    bf16* second = reinterpret_cast<bf16*>(to + 32) + place;
    first[0] = __float2bfloat16_rn(x.x), first[4] = __float2bfloat16_rn(x.y);
    second[0] = __float2bfloat16_rn(x.z), second[4] = __float2bfloat16_rn(x.w);
  }

 private:
  using Right = Operands<Dot::bf16>::Right;

  static __device__ __forceinline__ std::uint32_t packed(float low, float high) {
    return ptx::pack<bf16>(low, high);
  }
  // Eight lanes that load together find theirs in 128 bytes, and two that store in 32.
  static __device__ __forceinline__ int value_lane(int g, int t) {
    return g / 2 * 8 + 2 * t + g % 2;
  }
  // The g of the lanes that multiply with `column`.
  static __device__ __forceinline__ int column_lane(int column) {
    return column % 32 / 4 % 4 * 2 + column % 32 / 16;
  }

  const uint4 *keys_, *values_;
};

}  // namespace kernelmint::hstu
