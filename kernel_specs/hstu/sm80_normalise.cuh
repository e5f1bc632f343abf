// LayerNorm over all heads of a token, of both branches: o = LN(compressed) u + LN(selected) u.
//
// Eight lanes share a row of one head. Each head has its own mean and sum of squared deviations
// from it; the token's follow (Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm
// for computing sample variances", 1979).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "hstu/sm80_problem.cuh"
#include "hstu/sm80_products.cuh"

namespace kernelmint::hstu {

// A lane's part of one row of one head: the columns 32 i + 4 (lane % 8) + j.
template <int L>
struct Branches {
  float4 compressed[L / 32], selected[L / 32];
};

__device__ __forceinline__ float sum_of(float4 x) { return x.x + x.y + (x.z + x.w); }

__device__ __forceinline__ float eighth_sum(float x) {
#pragma unroll
  for (int distance = 1; distance < 8; distance *= 2) x += __shfl_xor_sync(~0u, x, distance);
  return x;
}

template <int L>
__device__ __forceinline__ float2 moments(const float4 (&x)[L / 32]) {
  float sum = 0, squares = 0;
#pragma unroll
  for (int i = 0; i < L / 32; ++i) sum += sum_of(x[i]);
  const float mean = eighth_sum(sum) * (1.0f / L);
#pragma unroll
  for (int i = 0; i < L / 32; ++i) {
    const float4 y = {x[i].x - mean, x[i].y - mean, x[i].z - mean, x[i].w - mean};
    squares += sum_of({y.x * y.x, y.y * y.y, y.z * y.z, y.w * y.w});
  }
  return {mean, eighth_sum(squares)};
}

// In every lane of a row's eight.
template <int L>
__device__ __forceinline__ Moments moments(const Branches<L>& row) {
  const float2 x = moments<L>(row.compressed), y = moments<L>(row.selected);
  return {x.x, x.y, y.x, y.y};
}

// A token's normalisers: {mean, factor} of the compressed branch, then of the selected one, in both
// lanes of a pair. `of_head(h)` gives the moments of head h. The selected branch comes `scale`
// times as large as it is, which only epsilon can tell.
template <int L, class OfHead>
__device__ __forceinline__ float4 normaliser(int heads, float scale, OfHead of_head) {
  // Deviations from the first head's mean, so that large means cost no precision.
  const Moments first = of_head(0);
  float2 sum = {0, 0}, squares = {0, 0};
  for (int h = threadIdx.x % 2; h < heads; h += 2) {
    const Moments m = of_head(h);
    const float x = m.x - first.x, y = m.z - first.z;
    sum.x += x, sum.y += y;
    squares.x += m.y + L * (x * x);
    squares.y += m.w + L * (y * y);
  }
  const auto both = [](float x) { return x + __shfl_xor_sync(~0u, x, 1); };
  const float share = 1.0f / heads;
  const auto factor = [&](float total, float mean, float epsilon) {
    const float variance = total * share * (1.0f / L) - mean * mean;
    return 1.0f / sqrtf((variance < 0.0f ? 0.0f : variance) + epsilon);  // fmaxf would lose NaN
  };
  constexpr float kEpsilon = 1e-6f;
  const float x = both(sum.x) * share, y = both(sum.y) * share;
  return {first.x + x, factor(both(squares.x), x, kEpsilon), first.z + y,
          factor(both(squares.y), y, kEpsilon * scale * scale)};
}

// Writes a lane's part of a row of o, gated by `u`; `n` is the token's normaliser.
template <int L>
__device__ __forceinline__ void store_normalised(float* o, const float4 (&u)[L / 32],
                                                 const Branches<L>& row, float4 n) {
#pragma unroll
  for (int i = 0; i < L / 32; ++i) {
    const float4 gate = u[i], x = row.compressed[i], y = row.selected[i];
    // Each branch by itself: an infinite gate makes NaN of two signs, as in the oracle.
    store4(o + 32 * i, {(x.x - n.x) * n.y * gate.x + (y.x - n.z) * n.w * gate.x,
                        (x.y - n.x) * n.y * gate.y + (y.y - n.z) * n.w * gate.y,
                        (x.z - n.x) * n.y * gate.z + (y.z - n.z) * n.w * gate.z,
                        (x.w - n.x) * n.y * gate.w + (y.w - n.z) * n.w * gate.w});
  }
}

__device__ __forceinline__ void add(float4& sum, float4 x) {
  sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
}

}  // namespace kernelmint::hstu
