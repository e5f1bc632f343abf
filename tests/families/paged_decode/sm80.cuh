// A block takes a split of one sequence and head, its warps a key at a time; the last block of a
// sequence and head takes the splits together.
#pragma once

#include <cstdint>

#include "dtypes.h"
#include "integers.h"

namespace kernelmint::paged_decode {

// exp(a - b), 0 if nothing was seen at all.
__device__ inline float weight(float a, float b) { return a == -INFINITY ? 0.0f : __expf(a - b); }

template <class Config>
__global__ void __launch_bounds__(32 * Config::warps)
    paged_decode_sm80(const typename Config::Args args) {
  using T = typename Config::dtype;
  constexpr int kPerLane = Config::d_head / 32;
  extern __shared__ float shared[];
  float* const greatest_of = shared;                  // [warps]
  float* const sum_of = greatest_of + Config::warps;  // [warps]
  float* const output_of = sum_of + Config::warps;    // [warps][d_head]
  const std::int64_t split = blockIdx.x, h = blockIdx.y, b = blockIdx.z;
  const int lane = threadIdx.x, warp = threadIdx.y, column = lane * kPerLane;
  const int thread = warp * 32 + lane;
  const std::int64_t length = *args.lengths.template at<const i32>(b);
  const std::int64_t chunk = ceil_div(length, std::int64_t{args.splits});
  const std::int64_t first = split * chunk;
  const std::int64_t last = first + chunk < length ? first + chunk : length;
  const std::int64_t kv_head = h / (args.H / args.Hk);

  const T* q = args.q.template at<const T>(b, h, column);
  float greatest = -INFINITY, sum = 0, o[kPerLane] = {};
  for (std::int64_t j = first + warp; j < last; j += Config::warps) {
    const std::int64_t page = *args.page_table.template at<const i32>(b, j / args.page_size);
    const std::int64_t row = j % args.page_size;
    const T* k = args.k.template at<const T>(page, row, kv_head, column);
    const T* v = args.v.template at<const T>(page, row, kv_head, column);
    float score = 0;
    for (int i = 0; i < kPerLane; ++i) score += static_cast<float>(q[i]) * static_cast<float>(k[i]);
    for (int lanes = 16; lanes > 0; lanes /= 2) score += __shfl_xor_sync(~0u, score, lanes);
    score *= args.scale;
    const float before = greatest;
    greatest = fmaxf(greatest, score);
    const float rescale = weight(before, greatest), p = weight(score, greatest);
    sum = sum * rescale + p;
    for (int i = 0; i < kPerLane; ++i) o[i] = o[i] * rescale + p * static_cast<float>(v[i]);
  }

  if (lane == 0) {
    greatest_of[warp] = greatest;
    sum_of[warp] = sum;
  }
  for (int i = 0; i < kPerLane; ++i) output_of[warp * Config::d_head + column + i] = o[i];
  __syncthreads();
  greatest = -INFINITY, sum = 0;
  for (int w = 0; w < Config::warps; ++w) greatest = fmaxf(greatest, greatest_of[w]);
  for (int w = 0; w < Config::warps; ++w) sum += sum_of[w] * weight(greatest_of[w], greatest);
  const float lse = sum > 0 ? greatest + __logf(sum) : -INFINITY;
  const std::int64_t place = (b * args.H + h) * args.splits + split;
  if (thread == 0 && args.partial_lse.data != nullptr)
    *args.partial_lse.template at<float>(b, h, split) = lse;
  for (int d = thread; d < Config::d_head; d += 32 * Config::warps) {
    float total = 0;
    for (int w = 0; w < Config::warps; ++w)
      total += output_of[w * Config::d_head + d] * weight(greatest_of[w], greatest);
    if (sum > 0) total /= sum;
    if (args.splits == 1)
      *args.o.template at<T>(b, h, d) = static_cast<T>(total);
    else
      args.workspace.partial[place * Config::d_head + d] = total;
  }
  if (args.splits == 1) return;

  if (thread == 0) args.workspace.lse[place] = lse;
  __threadfence();
  __syncthreads();
  __shared__ bool is_last;
  if (thread == 0)
    is_last = atomicAdd(&args.workspace.tickets[b * args.H + h], 1) == args.splits - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  const float* of_splits = args.workspace.lse + (b * args.H + h) * args.splits;
  const float* partial = args.workspace.partial + (b * args.H + h) * args.splits * Config::d_head;
  greatest = -INFINITY, sum = 0;
  for (int s = 0; s < args.splits; ++s) greatest = fmaxf(greatest, of_splits[s]);
  for (int s = 0; s < args.splits; ++s) sum += weight(of_splits[s], greatest);
  for (int d = thread; d < Config::d_head; d += 32 * Config::warps) {
    float total = 0;
    for (int s = 0; s < args.splits; ++s)
      total += weight(of_splits[s], greatest) * partial[s * Config::d_head + d];
    *args.o.template at<T>(b, h, d) = static_cast<T>(sum > 0 ? total / sum : 0.0f);
  }
}

}  // namespace kernelmint::paged_decode
