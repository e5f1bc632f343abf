// Block-sparse attention for HSTU on tensor cores, in five kernels.
//
// The selected branch is sparse for a query and dense for a block: turned around, each block of
// keys meets the queries that chose it, gathered, sixteen a warp. What a block contributes to a
// query is written by itself and added up at the end, so no order of execution changes the result.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "hstu/block_sparse.h"
#include "hstu/sm80_products.cuh"
#include "launch.h"
#include "ptx/cp_async.cuh"

namespace kernelmint::hstu {

inline constexpr int kWarps = 4;
inline constexpr int kThreads = 32 * kWarps;
inline constexpr int kSortThreads = 512;
inline constexpr int kMostBlocks = 4096;      // of one sequence: counted in shared memory
inline constexpr int kMostNormalised = 4096;  // heads * L: four columns a thread

// What the kernels need of a configuration, so that two families can share them.
template <int kA, int kL, int kBlockSize, int kBlockCount, bool kLiteral, Dot kDotPrecision>
struct Shape {
  static constexpr int A = kA;
  static constexpr int L = kL;
  static constexpr int block_size = kBlockSize;
  static constexpr int block_count = kBlockCount;
  static constexpr Semantics semantics = hstu::semantics(kLiteral);
  static constexpr Dot dot = kDotPrecision;
  // Thread blocks to make room for on a multiprocessor, each with 4 warps: as many as the registers
  // allow without spilling more than a few.
  static constexpr int resident_score_blocks = kA <= 32 ? 4 : 3;
  static constexpr int resident_attend_blocks = kDotPrecision == Dot::bf16 && kA <= 64 ? 5
                                                : kA <= 32                             ? 4
                                                                                       : 3;
  // Of what a block contributes to a query: as exact as the product it comes from.
  using Partial = std::conditional_t<kDotPrecision == Dot::bf16, bf16, float>;
};

// In all kernels Config is what gives them their name; what it says is in Shape.

// The mean key and value of each block: four columns a thread.
template <class Config, class Shape>
__global__ void __launch_bounds__(kThreads) pool_blocks(const Problem problem, int blocks) {
  constexpr int kSize = Shape::A + Shape::L;
  const std::int64_t item = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t columns = problem.heads * (kSize / 4);
  const int b = static_cast<int>(item / (columns * blocks));
  if (b >= problem.sequences) return;
  const Sequence sequence = problem.sequence(b, Shape::block_size);
  const int c = static_cast<int>(item / columns % blocks);
  const std::int64_t begin = std::int64_t{c} * Shape::block_size;
  if (begin >= sequence.length) return;
  // Neighbouring threads take neighbouring columns of k, all heads, then of v.
  int column = static_cast<int>(item % columns) * 4;
  const bool is_key = column < problem.heads * Shape::A;
  const int size = is_key ? Shape::A : Shape::L;
  if (!is_key) column -= static_cast<int>(problem.heads) * Shape::A;
  const int h = column / size, d = column % size;
  const Rows<const float>& rows = is_key ? problem.k : problem.v;
  const float* from = rows.at(b, sequence.first_token + begin, h) + d;
  float4 sum = {0, 0, 0, 0};
  const int count = static_cast<int>(
      sequence.length - begin < Shape::block_size ? sequence.length - begin : Shape::block_size);
#pragma unroll 8
  for (int j = 0; j < count; ++j) {
    const float4 x = load4(from + j * rows.token);
    sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
  }
  constexpr float kShare = 1.0f / Shape::block_size;
  float* to = (is_key ? problem.k_cmp : problem.v_cmp) +
              ((sequence.first_block + c) * problem.heads + h) * size + d;
  store4(to, {sum.x * kShare, sum.y * kShare, sum.z * kShare, sum.w * kShare});
}

// The best kCount blocks of one row, by score descending, then index ascending.
template <int kCount>
struct Best {
  float score[kCount];
  int index[kCount];

  __device__ __forceinline__ Best() {
#pragma unroll
    for (int i = 0; i < kCount; ++i) score[i] = -INFINITY, index[i] = -1;
  }

  // Blocks come in rising order, so equal scores keep the order they come in.
  __device__ __forceinline__ void offer(float x, int c) {
    place(x, c, [x](float y, int) { return x > y; });
  }

  __device__ __forceinline__ void insert(float x, int c) {
    place(x, c, [x, c](float y, int j) { return x > y || (x == y && c < j); });
  }

  // Takes in the lists of the other three lanes of a row.
  __device__ __forceinline__ void merge_quad() {
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) {
      float other_score[kCount];
      int other_index[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        other_score[i] = __shfl_xor_sync(~0u, score[i], distance);
        other_index[i] = __shfl_xor_sync(~0u, index[i], distance);
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (other_index[i] >= 0) insert(other_score[i], other_index[i]);
      }
    }
  }

 private:
  // Without a branch: those that (x, c) goes before move down by one.
  template <class Before>
  __device__ __forceinline__ void place(float x, int c, Before goes_before) {
    bool before[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) before[i] = goes_before(score[i], index[i]);
#pragma unroll
    for (int i = kCount - 1; i > 0; --i) {
      score[i] = before[i - 1] ? score[i - 1] : before[i] ? x : score[i];
      index[i] = before[i - 1] ? index[i - 1] : before[i] ? c : index[i];
    }
    score[0] = before[0] ? x : score[0];
    index[0] = before[0] ? c : index[0];
  }
};

// 16 queries of one head a warp: the compressed branch, and the lists of blocks.
template <class Config, class Shape>
__global__ void __launch_bounds__(kThreads, Shape::resident_score_blocks)
    score_blocks(const Problem problem, int tiles) {
  constexpr int A = Shape::A, L = Shape::L, S = Shape::block_count;
  constexpr int kBlockSize = Shape::block_size;
  constexpr int kStep = 16;  // blocks a step of the loop takes
  constexpr Semantics kMode = Shape::semantics;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  // The last tiles see most blocks: they go first.
  const int tile = tiles - 1 - static_cast<int>(blockIdx.x % tiles);
  const int head = static_cast<int>(blockIdx.x / tiles % problem.heads);
  const Sequence sequence = problem.sequence(blockIdx.x / (tiles * problem.heads), kBlockSize);
  const int first = (tile * kWarps + threadIdx.x / 32) * 16;
  const int length = static_cast<int>(sequence.length);
  if (first >= length) return;
  const int row[2] = {first + g, first + g + 8};
  // Rows past the end read the last one; nothing of theirs is written.
  const auto token = [&](int i) {
    return sequence.first_token + (row[i] < length ? row[i] : length - 1);
  };
  const Queries<A, Shape::dot> queries(problem.q.at(sequence.index, token(0), head),
                                       problem.q.at(sequence.index, token(1), head), t, float{A});

  const int blocks = (length + kBlockSize - 1) / kBlockSize;
  const int last_row = first + 15 < length ? first + 15 : length - 1;
  const int end = kMode.rank_unseen ? blocks : last_row / kBlockSize + 1;
  const std::int64_t base = sequence.first_block * problem.heads + head;
  const float* k_cmp = problem.k_cmp + base * A;
  const float* v_cmp = problem.v_cmp + base * L;
  const int heads = static_cast<int>(problem.heads);
  float out[L / 8][4] = {};
  Best<S> best[2];
  for (int begin = 0; begin < end; begin += kStep) {
    const auto block = [&](int j) { return min(begin + j, blocks - 1) * heads; };
    float scores[kStep / 8][4] = {};
    multiply_queries_keys<kStep>(scores, queries, g, t,
                                 [&](int j) { return k_cmp + block(j) * A; });
#pragma unroll
    for (int i = 0; i < kStep / 8; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int c = begin + 8 * i + 2 * t + e % 2, r = row[e / 2];
        const bool complete = (c + 1) * kBlockSize - 1 <= r;
        const bool seen = c < blocks && (complete || (kMode.open_first_rows && r < kBlockSize - 1));
        const float score = seen ? silu(scores[i][e]) * (1.0f / A) : 0.0f;
        scores[i][e] = score;
        const bool local = c == r / kBlockSize;
        const bool ranked = local || seen || (kMode.rank_unseen && c < blocks);
        best[e / 2].offer(!ranked ? -INFINITY : local ? kMode.local_rank : score, c);
      }
    }
    multiply_weights_values<kStep, L, Shape::dot>(
        out, scores, g, t, [&](int j, int column) { return v_cmp + block(j) * L + column; });
  }

  float gate[2];
  float* to[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    gate[i] = *problem.g_cmp.at(sequence.index, token(i), head);
    to[i] = row[i] < length ? problem.o_cmp + ((sequence.first + row[i]) * problem.heads + head) * L
                            : nullptr;
  }
  store_rows<L>(to[0], to[1], out, t, gate[0], gate[1]);

  if (kMode.share_heads && head % 2 == 1) return;  // the even head writes both lists
  const int listed = blocks < S ? blocks : S;
  const bool twice = kMode.share_heads && head + 1 < problem.heads;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    best[i].merge_quad();
    if (row[i] >= length) continue;
    std::int64_t* list = problem.lists.at(sequence.index, sequence.first_token + row[i], head);
#pragma unroll
    for (int s = 0; s < S; ++s) {
      if (s % 4 != t || (s >= listed && problem.offsets == nullptr)) continue;
      const int c = best[i].index[s];
      const std::int64_t entry = c > row[i] / kBlockSize ? -1 : c;
      list[s] = entry;
      if (twice) list[problem.lists.head + s] = entry;
    }
  }
}

// Entry s of the list that query (t, head) uses, or -1 if it holds no key at or before t.
template <class Shape>
__device__ __forceinline__ int listed_block(const Problem& problem, const Sequence& sequence, int t,
                                            int head, int s) {
  std::int64_t token = t, owner = head;
  if constexpr (Shape::semantics.reinterpret_lists) {
    const std::int64_t position = std::int64_t{t} * problem.heads + head;
    owner = position / sequence.length;
    token = position % sequence.length;
  }
  const int c =
      static_cast<int>(problem.lists.at(sequence.index, sequence.first_token + token, owner)[s]);
  return c >= 0 && c * Shape::block_size <= t ? c : -1;
}

struct HeadScratch {
  std::int32_t* starts;  // [blocks + 1]
  std::int32_t* order;   // [length * S]
};

template <class Shape>
__device__ __forceinline__ HeadScratch head_scratch(const Problem& problem,
                                                    const Sequence& sequence, int head) {
  const std::int64_t blocks = (sequence.length + Shape::block_size - 1) / Shape::block_size;
  return {problem.starts + sequence.first_block * problem.heads + sequence.index * problem.heads +
              head * (blocks + 1),
          problem.order +
              (sequence.first * problem.heads + head * sequence.length) * Shape::block_count};
}

// One head a thread block: its list entries sorted by block (counting sort).
template <class Config, class Shape>
__global__ void __launch_bounds__(kSortThreads, 1) sort_lists(const Problem problem) {
  __shared__ int counts[kMostBlocks];
  __shared__ int warp_sums[kSortThreads / 32];
  const int head = static_cast<int>(blockIdx.x % problem.heads);
  const Sequence sequence = problem.sequence(blockIdx.x / problem.heads, Shape::block_size);
  const int length = static_cast<int>(sequence.length);
  const int blocks = (length + Shape::block_size - 1) / Shape::block_size;
  const int listed = blocks < Shape::block_count ? blocks : Shape::block_count;
  const HeadScratch scratch = head_scratch<Shape>(problem, sequence, head);

  for (int c = threadIdx.x; c < kMostBlocks; c += kSortThreads) counts[c] = 0;
  __syncthreads();
  for (int t = threadIdx.x; t < length; t += kSortThreads) {
    for (int s = 0; s < listed; ++s) {
      const int c = listed_block<Shape>(problem, sequence, t, head, s);
      if (c >= 0) atomicAdd(&counts[c], 1);
    }
  }
  __syncthreads();

  // Exclusive prefix sums: over a thread's counts, then over the warp, then over the warps.
  constexpr int kEach = kMostBlocks / kSortThreads;
  int mine[kEach], sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    mine[i] = counts[threadIdx.x * kEach + i];
    sum += mine[i];
  }
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int inclusive = sum;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int below = __shfl_up_sync(~0u, inclusive, distance);
    if (lane >= distance) inclusive += below;
  }
  if (lane == 31) warp_sums[warp] = inclusive;
  __syncthreads();
  int start = inclusive - sum;
  for (int w = 0; w < warp; ++w) start += warp_sums[w];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int c = static_cast<int>(threadIdx.x) * kEach + i;
    counts[c] = start;
    if (c <= blocks) scratch.starts[c] = start;
    start += mine[i];
  }
  __syncthreads();

  for (int t = threadIdx.x; t < length; t += kSortThreads) {
    for (int s = 0; s < listed; ++s) {
      const int c = listed_block<Shape>(problem, sequence, t, head, s);
      if (c >= 0) scratch.order[atomicAdd(&counts[c], 1)] = t * Shape::block_count + s;
    }
  }
}

// A block's keys and values in shared memory. A warp reads 16 bytes of each of eight keys (two
// pieces a row) at a time, and of four values (every second row); the padding of keys and the order
// of the pieces of values put those into different banks.
template <class Shape>
struct BlockTile {
  static constexpr int kKeyStride = Shape::A % 32 == 16 ? Shape::A : Shape::A + 16;

  alignas(16) float keys[Shape::block_size][kKeyStride];
  alignas(16) float values[Shape::block_size][Shape::L];

  __device__ __forceinline__ const float* key(int j) const { return keys[j]; }
  __device__ __forceinline__ const float* value(int j, int column) const {
    return &values[j][piece(j, column)];
  }

  // Rows past `last` repeat it. The copies are waited for by ptx::cp_async_wait_all and a barrier.
  template <int kCopiers>
  __device__ __forceinline__ void load(const float* k, int k_stride, const float* v, int v_stride,
                                       int last) {
    constexpr int kPieces = Shape::A / 4, kValuePieces = Shape::L / 4;
    for (int i = threadIdx.x; i < Shape::block_size * kPieces; i += kCopiers) {
      const int j = i / kPieces, column = i % kPieces * 4;
      copy(&keys[j][column], k + min(j, last) * k_stride + column);
    }
    for (int i = threadIdx.x; i < Shape::block_size * kValuePieces; i += kCopiers) {
      const int j = i / kValuePieces, column = i % kValuePieces * 4;
      copy(&values[j][piece(j, column)], v + min(j, last) * v_stride + column);
    }
  }

 private:
  static __device__ __forceinline__ void copy(float* to, const float* from) {
    ptx::cp_async_16(static_cast<std::uint32_t>(__cvta_generic_to_shared(to)), from);
  }

  static __device__ __forceinline__ int piece(int j, int column) {
    return column ^ (j / 2 % 4 * 4);
  }
};

// One block of keys of one head: 16 of the queries that chose it at a time, a warp.
template <class Config, class Shape>
__global__ void __launch_bounds__(kThreads, Shape::resident_attend_blocks)
    attend_blocks(const Problem problem, int blocks) {
  constexpr int A = Shape::A, L = Shape::L, S = Shape::block_count;
  constexpr int kBlockSize = Shape::block_size;
  constexpr int kStep = 16;  // keys a step takes
  using Partial = typename Shape::Partial;
  __shared__ BlockTile<Shape> tile;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int head = static_cast<int>(blockIdx.x / blocks % problem.heads);
  const int c = static_cast<int>(blockIdx.x % blocks);
  const Sequence sequence =
      problem.sequence(blockIdx.x / (std::int64_t{blocks} * problem.heads), kBlockSize);
  const int length = static_cast<int>(sequence.length);
  if (c * kBlockSize >= length) return;
  const std::int64_t first_key = sequence.first_token + c * kBlockSize;
  tile.template load<kThreads>(problem.k.at(sequence.index, first_key, head),
                               static_cast<int>(problem.k.token),
                               problem.v.at(sequence.index, first_key, head),
                               static_cast<int>(problem.v.token), length - 1 - c * kBlockSize);
  const HeadScratch scratch = head_scratch<Shape>(problem, sequence, head);
  const int first = scratch.starts[c], count = scratch.starts[c + 1] - first;
  Partial* partial = static_cast<Partial*>(problem.partial);
  ptx::cp_async_wait_all();
  __syncthreads();

  for (int begin = static_cast<int>(threadIdx.x) / 32 * 16; begin < count; begin += kThreads / 2) {
    int entry[2], row[2];
    const float* query[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = begin + g + 8 * i;
      entry[i] = at < count ? scratch.order[first + at] : -1;
      row[i] = entry[i] < 0 ? 0 : entry[i] / S;
      query[i] = problem.q.at(sequence.index, sequence.first_token + row[i], head);
    }
    const Queries<A, Shape::dot> queries(query[0], query[1], t, 1.0f);
    float out[L / 8][4] = {};
#pragma unroll 1
    for (int step = 0; step < kBlockSize; step += kStep) {
      float weights[kStep / 8][4] = {};
      multiply_queries_keys<kStep>(weights, queries, g, t,
                                   [&](int j) { return tile.key(step + j); });
#pragma unroll
      for (int i = 0; i < kStep / 8; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int key = c * kBlockSize + step + 8 * i + 2 * t + e % 2;
          weights[i][e] = key <= row[e / 2] ? silu(weights[i][e]) * (1.0f / A) : 0.0f;
        }
      }
      multiply_weights_values<kStep, L, Shape::dot>(
          out, weights, g, t, [&](int j, int column) { return tile.value(step + j, column); });
    }
    Partial* to[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::int64_t place =
          ((sequence.first + row[i]) * problem.heads + head) * S + entry[i] % S;
      to[i] = entry[i] < 0 ? nullptr : partial + place * L;
    }
    store_rows<L>(to[0], to[1], out, t, 1.0f, 1.0f);
  }
}

// The sums of two numbers over a thread block, in every thread.
__device__ __forceinline__ float2 block_sum(float2 x, float2 (&scratch)[kMostNormalised / 128]) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    x.x += __shfl_xor_sync(~0u, x.x, distance);
    x.y += __shfl_xor_sync(~0u, x.y, distance);
  }
  __syncthreads();  // the scratch of an earlier sum has been read
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  float2 sum = scratch[0];
  for (int w = 1; w < static_cast<int>(blockDim.x) / 32; ++w) {
    sum.x += scratch[w].x, sum.y += scratch[w].y;
  }
  return sum;
}

__device__ __forceinline__ float sum_of(float4 x) { return x.x + x.y + (x.z + x.w); }

// One token a thread block, four columns a thread: adds up its selected branch, normalises both,
// gates and adds. All loads are issued before any is needed: what no list names is loaded in vain.
template <class Config, class Shape>
__global__ void __launch_bounds__(kMostNormalised / 4) combine_branches(const Problem problem) {
  constexpr int L = Shape::L, S = Shape::block_count;
  __shared__ float2 sums[kMostNormalised / 128];
  const Sequence sequence = problem.sequence(blockIdx.x / problem.max_length, Shape::block_size);
  const int token = static_cast<int>(blockIdx.x % problem.max_length);
  if (token >= sequence.length) return;
  const int blocks =
      static_cast<int>((sequence.length + Shape::block_size - 1) / Shape::block_size);
  const int width = static_cast<int>(problem.heads) * L;
  const bool inside = static_cast<int>(threadIdx.x) * 4 < width;
  const int column = inside ? static_cast<int>(threadIdx.x) * 4 : 0;
  const int head = column / L, d = column % L;
  const std::int64_t row = (sequence.first + token) * problem.heads;
  const std::int64_t at = sequence.first_token + token;
  const float4 u = load4(problem.u.at(sequence.index, at, head) + d);
  float4 x = load4(problem.o_cmp + row * L + column);
  const auto* partial = static_cast<const typename Shape::Partial*>(problem.partial);
  float4 parts[S];
  bool listed[S];
#pragma unroll
  for (int s = 0; s < S; ++s) {
    listed[s] = s < blocks && listed_block<Shape>(problem, sequence, token, head, s) >= 0;
    parts[s] = load4(partial + ((row + head) * S + s) * L + d);
  }
  float4 y = {0, 0, 0, 0};
#pragma unroll
  for (int s = 0; s < S; ++s) {
    if (!listed[s]) continue;
    y.x += parts[s].x, y.y += parts[s].y, y.z += parts[s].z, y.w += parts[s].w;
  }
  if (!inside) x = y = {0, 0, 0, 0};
  const float share = 1.0f / width;
  const float2 sum = block_sum({sum_of(x), sum_of(y)}, sums);
  if (inside) {
    const float2 mean = {sum.x * share, sum.y * share};
    x = {x.x - mean.x, x.y - mean.x, x.z - mean.x, x.w - mean.x};
    y = {y.x - mean.y, y.y - mean.y, y.z - mean.y, y.w - mean.y};
  }
  const float2 squares = block_sum({sum_of({x.x * x.x, x.y * x.y, x.z * x.z, x.w * x.w}),
                                    sum_of({y.x * y.x, y.y * y.y, y.z * y.z, y.w * y.w})},
                                   sums);
  if (!inside) return;
  constexpr float kEpsilon = 1e-6f;
  const float f = 1.0f / sqrtf(squares.x * share + kEpsilon);
  const float g = 1.0f / sqrtf(squares.y * share + kEpsilon);
  store4(problem.o.at(sequence.index, at, head) + d,
         {(x.x * f + y.x * g) * u.x, (x.y * f + y.y * g) * u.y, (x.z * f + y.z * g) * u.z,
          (x.w * f + y.w * g) * u.w});
}

// Makes `device` the current one while it lives.
struct DeviceScope {
  explicit DeviceScope(int device) : wanted(device) {
    cudaError_t status = cudaGetDevice(&previous);
    if (status == cudaSuccess && previous != wanted) status = cudaSetDevice(wanted);
    if (status != cudaSuccess) error = cudaGetErrorString(status);
  }
  ~DeviceScope() {
    if (error == nullptr && previous != wanted) cudaSetDevice(previous);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  int wanted, previous = -1;
  const char* error = nullptr;
};

// All of it, on the caller's stream.
template <class Config, class Shape>
LaunchResult block_sparse_attention(const Problem& problem, const LaunchContext& context) {
  const std::int64_t blocks = (problem.max_length + Shape::block_size - 1) / Shape::block_size;
  const std::int64_t heads = problem.sequences * problem.heads;
  const std::int64_t tiles = (problem.max_length + 16 * kWarps - 1) / (16 * kWarps);
  const std::int64_t columns = problem.heads * ((Shape::A + Shape::L) / 4);
  // `grid` thread blocks of `threads` threads
  const auto run = [&](auto kernel, std::int64_t grid, std::int64_t threads,
                       auto... extra) -> LaunchResult {
    if (grid > INT32_MAX) return {"the launch grid exceeds 2^31 - 1 blocks: split the batch"};
    kernel<<<static_cast<unsigned>(grid), static_cast<unsigned>(threads), 0,
             static_cast<cudaStream_t>(context.stream)>>>(problem, static_cast<int>(extra)...);
    const cudaError_t status = cudaGetLastError();
    return {status == cudaSuccess ? nullptr : cudaGetErrorString(status)};
  };
  if (!is_aligned(problem.q) || !is_aligned(problem.k) || !is_aligned(problem.v) ||
      !is_aligned(problem.u) || !is_aligned(problem.o))
    return {
        "rows of q, k, v, u and o must start at multiples of 16 bytes: pass contiguous tensors"};
  if (blocks >= kMostBlocks)
    return {"a sequence has 4096 blocks or more: they are counted in shared memory"};
  DeviceScope scope(context.device);
  if (scope.error != nullptr) return {scope.error};
  const std::int64_t items = problem.sequences * blocks * columns;
  const std::int64_t normalising = (problem.heads * Shape::L / 4 + 31) / 32 * 32;
  LaunchResult result =
      run(pool_blocks<Config, Shape>, (items + kThreads - 1) / kThreads, kThreads, blocks);
  if (result.error == nullptr)
    result = run(score_blocks<Config, Shape>, tiles * heads, kThreads, tiles);
  if (result.error == nullptr) result = run(sort_lists<Config, Shape>, heads, kSortThreads);
  if (result.error == nullptr)
    result = run(attend_blocks<Config, Shape>, blocks * heads, kThreads, blocks);
  if (result.error == nullptr)
    result =
        run(combine_branches<Config, Shape>, problem.sequences * problem.max_length, normalising);
  return result;
}

}  // namespace kernelmint::hstu
