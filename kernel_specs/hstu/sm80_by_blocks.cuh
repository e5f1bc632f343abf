// Block-sparse attention for HSTU by blocks of keys, in five kernels.
//
// The selected branch is sparse for a query and dense for a block: turned around, each block of
// keys meets the queries that chose it, gathered, sixteen a warp. What a block contributes to a
// query is written by itself and added up at the end, so no order of execution changes the result.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "hstu/problem.h"
#include "hstu/sm80_normalise.cuh"
#include "hstu/sm80_products.cuh"
#include "hstu/sm80_scores.cuh"
#include "integers.h"
#include "ptx/cp_async.cuh"
#include "ptx/dependent_launch.cuh"

namespace kernelmint::hstu {

inline constexpr int kSortThreads = 512;
inline constexpr int kMostBlocks = 4096;      // blocks of one sequence: counted in shared memory
inline constexpr int kMostNormalised = 4096;  // heads * L

// Thread blocks to make room for on a multiprocessor: as many as the registers allow without
// spilling more than a few.
template <class Shape>
constexpr int kScoreBlocks = (Shape::A <= 32 ? 16 : 12) / Shape::warps;
template <class Shape>
constexpr int kAttendBlocks = (Shape::dot == Dot::bf16 && Shape::A <= 64 ? 20
                               : Shape::A <= 32                          ? 16
                                                                         : 12) /
                              Shape::warps;

// 16 queries of one head a warp: the compressed branch, and the lists of blocks.
template <class Config, class Shape>
__global__ void __launch_bounds__(Shape::threads, kScoreBlocks<Shape>)
    score_blocks(const BlocksProblem<Shape> problem, int tiles) {
  ptx::let_next_kernel_start();
  ptx::wait_for_kernel_ahead();
  constexpr int L = Shape::L;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  // The last tiles see most blocks: they go first.
  const int tile = tiles - 1 - static_cast<int>(blockIdx.x % tiles);
  const int head = static_cast<int>(blockIdx.x / tiles % problem.heads);
  const Sequence sequence =
      problem.sequence(blockIdx.x / (tiles * problem.heads), Shape::block_size);
  const int first = tile * Shape::tile + static_cast<int>(threadIdx.x) / 32 * 16;
  if (first >= sequence.length) return;
  const int row[2] = {first + g, first + g + 8};
  const auto query = [&](int i) {  // rows past the end read the last one
    const std::int64_t at = row[i] < sequence.length ? row[i] : sequence.length - 1;
    return problem.q.at(sequence.index, sequence.first_token + at, head);
  };
  const Queries<Shape::A, Shape::dot> queries(query(0), query(1), t);
  RowScores<Shape> found;
  score_rows(found, problem, sequence, head, queries, first, row, g, t);
  const float2 factor = compressed_gates<Shape>(problem, sequence, head, row);
  using Partial = typename Shape::Partial;
  const auto to = [&](int i) -> Partial* {
    if (row[i] >= sequence.length) return nullptr;
    return problem.compressed + ((sequence.first + row[i]) * problem.heads + head) * L;
  };
  store_rows<L>(to(0), to(1), found.out, t, factor.x, factor.y);
  store_lists(found, problem, sequence, head, row[listed_row(t)], t);
}

// Entry s of the list that query (token, head) uses, or -1 if it holds no key at or before it.
template <class Shape>
__device__ __forceinline__ int listed_block(const Problem& problem, const Sequence& sequence,
                                            int token, int head, int s) {
  std::int64_t listed_token = token, owner = head;
  if constexpr (Shape::semantics.reinterpret_lists) {
    const std::int64_t position = std::int64_t{token} * problem.heads + head;
    owner = position / sequence.length;
    listed_token = position % sequence.length;
  }
  const std::int64_t* list =
      problem.lists.at(sequence.index, sequence.first_token + listed_token, owner);
  const int c = static_cast<int>(list[s]);
  return c >= 0 && c * Shape::block_size <= token ? c : -1;
}

// The list entries of one head of a sequence, sorted by block.
struct HeadEntries {
  std::int32_t* starts;   // [blocks + 1]
  std::int32_t* entries;  // [length * S]
};

template <class Shape>
__device__ __forceinline__ HeadEntries head_entries(const BlocksProblem<Shape>& problem,
                                                    const Sequence& sequence, int head) {
  const std::int64_t blocks = ceil_div<Shape::block_size>(sequence.length);
  return {problem.entry_starts + sequence.first_block * problem.heads +
              sequence.index * problem.heads + head * (blocks + 1),
          problem.entries +
              (sequence.first * problem.heads + head * sequence.length) * Shape::block_count};
}

// One head a thread block: its list entries sorted by block (counting sort).
template <class Config, class Shape>
__global__ void __launch_bounds__(kSortThreads, 1) sort_lists(const BlocksProblem<Shape> problem) {
  ptx::let_next_kernel_start();
  ptx::wait_for_kernel_ahead();
  __shared__ int counts[kMostBlocks];
  __shared__ int warp_sums[kSortThreads / 32];
  const int head = static_cast<int>(blockIdx.x % problem.heads);
  const Sequence sequence = problem.sequence(blockIdx.x / problem.heads, Shape::block_size);
  const int length = static_cast<int>(sequence.length);
  const int blocks = ceil_div<Shape::block_size>(length);
  const int listed = blocks < Shape::block_count ? blocks : Shape::block_count;
  const HeadEntries sorted = head_entries(problem, sequence, head);

  for (int c = threadIdx.x; c < kMostBlocks; c += kSortThreads) counts[c] = 0;
  __syncthreads();
  for (int token = threadIdx.x; token < length; token += kSortThreads) {
    for (int s = 0; s < listed; ++s) {
      const int c = listed_block<Shape>(problem, sequence, token, head, s);
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
    if (c <= blocks) sorted.starts[c] = start;
    start += mine[i];
  }
  __syncthreads();

  for (int token = threadIdx.x; token < length; token += kSortThreads) {
    for (int s = 0; s < listed; ++s) {
      const int c = listed_block<Shape>(problem, sequence, token, head, s);
      if (c >= 0) sorted.entries[atomicAdd(&counts[c], 1)] = token * Shape::block_count + s;
    }
  }
}

// A block's keys and values in shared memory. A warp reads 16 bytes of each of eight keys (two
// pieces a row) at a time, and of four values (every second row); the padding of keys and the order
// of the pieces of values put those into different banks.
template <class Shape>
struct BlockTile {
  static constexpr int kKeyStride = Shape::A % 32 == 16 ? Shape::A : Shape::A + 16;

  alignas(16) float key_rows[Shape::block_size][kKeyStride];
  alignas(16) float value_rows[Shape::block_size][Shape::L];

  __device__ __forceinline__ RightPair<Shape::dot> keys(int step, int slice, int g, int t) const {
    return keys_from<Shape::dot>(slice, g, t, [&](int j) { return key_rows[16 * step + j]; });
  }
  __device__ __forceinline__ RightQuad<Shape::dot> values(int step, int chunk, int g, int t) const {
    return values_from<Shape::dot>(chunk, g, t, [&](int j, int column) {
      return &value_rows[16 * step + j][piece(j, column)];
    });
  }

  // Rows past `last` repeat it. The copies are waited for by ptx::cp_async_wait_all and a barrier.
  template <int kCopiers>
  __device__ __forceinline__ void load(const float* k, int k_stride, const float* v, int v_stride,
                                       int last) {
    constexpr int kPieces = Shape::A / 4, kValuePieces = Shape::L / 4;
    for (int i = threadIdx.x; i < Shape::block_size * kPieces; i += kCopiers) {
      const int j = i / kPieces, column = i % kPieces * 4;
      copy(&key_rows[j][column], k + min(j, last) * k_stride + column);
    }
    for (int i = threadIdx.x; i < Shape::block_size * kValuePieces; i += kCopiers) {
      const int j = i / kValuePieces, column = i % kValuePieces * 4;
      copy(&value_rows[j][piece(j, column)], v + min(j, last) * v_stride + column);
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
__global__ void __launch_bounds__(Shape::threads, kAttendBlocks<Shape>)
    attend_blocks(const BlocksProblem<Shape> problem, int blocks) {
  ptx::let_next_kernel_start();
  ptx::wait_for_kernel_ahead();
  constexpr int L = Shape::L, S = Shape::block_count;
  constexpr int kBlockSize = Shape::block_size;
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
  tile.template load<Shape::threads>(
      problem.k.at(sequence.index, first_key, head), static_cast<int>(problem.k.token),
      problem.v.at(sequence.index, first_key, head), static_cast<int>(problem.v.token),
      length - 1 - c * kBlockSize);
  const HeadEntries sorted = head_entries(problem, sequence, head);
  const int first = sorted.starts[c], count = sorted.starts[c + 1] - first;
  ptx::cp_async_wait_all();
  __syncthreads();

  for (int begin = static_cast<int>(threadIdx.x) / 32 * 16; begin < count;
       begin += Shape::threads / 2) {
    int entry[2], row[2];
    const float* query[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = begin + g + 8 * i;
      entry[i] = at < count ? sorted.entries[first + at] : -1;
      row[i] = entry[i] < 0 ? 0 : entry[i] / S;
      query[i] = problem.q.at(sequence.index, sequence.first_token + row[i], head);
    }
    const Queries<Shape::A, Shape::dot> queries(query[0], query[1], t);
    float out[L / 8][4] = {};
    attend_rows<Shape, AttendOptions{.masked = true, .unrolled = false}>(out, queries, row, c, tile,
                                                                         g, t);
    Partial* to[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::int64_t place =
          ((sequence.first + row[i]) * problem.heads + head) * S + entry[i] % S;
      to[i] = entry[i] < 0 ? nullptr : problem.contributions + place * L;
    }
    store_rows<L>(to[0], to[1], out, t, 1.0f, 1.0f);
  }
}

// Tokens a thread block of combine_branches takes: at most 256 threads, if a token needs no more.
inline int combined_tokens(std::int64_t heads) {
  return heads >= 32 ? 1 : static_cast<int>(32 / heads);
}

// Eight lanes a row of a head, all heads of a token side by side: adds up the selected branch,
// normalises both, gates and adds. What no list names was not written, and is not read; the loads
// of all that is named are issued before any is needed.
template <class Config, class Shape>
__global__ void __launch_bounds__(8 * kMostNormalised / Shape::L)
    combine_branches(const BlocksProblem<Shape> problem, int tokens) {
  ptx::let_next_kernel_start();
  ptx::wait_for_kernel_ahead();
  constexpr int L = Shape::L, S = Shape::block_count;
  using Partial = typename Shape::Partial;
  __shared__ Moments of_rows[kMostNormalised / L];
  const int heads = static_cast<int>(problem.heads);
  const std::int64_t groups = ceil_div(problem.max_length, tokens);
  const Sequence sequence = problem.sequence(blockIdx.x / groups, Shape::block_size);
  const int place = static_cast<int>(threadIdx.x) / 8;  // the row's place in this thread block
  const int token = static_cast<int>(blockIdx.x % groups) * tokens + place / heads;
  const int head = place % heads, column = static_cast<int>(threadIdx.x) % 8 * 4;
  const bool inside = place < tokens * heads && token < sequence.length;
  Branches<L> row = {};
  float4 u[L / 32] = {};
  if (inside) {
    const int blocks = static_cast<int>(ceil_div<Shape::block_size>(sequence.length));
    const std::int64_t at = (sequence.first + token) * heads + head;
    const Partial* compressed = problem.compressed + at * L + column;
    const Partial* parts = problem.contributions + at * S * L + column;
    bool named[S];
#pragma unroll
    for (int s = 0; s < S; ++s)
      named[s] = s < blocks && listed_block<Shape>(problem, sequence, token, head, s) >= 0;
    float4 part[S][L / 32] = {};
#pragma unroll
    for (int i = 0; i < L / 32; ++i) {
      row.compressed[i] = load4(compressed + 32 * i);
#pragma unroll
      for (int s = 0; s < S; ++s)
        if (named[s]) part[s][i] = load4(parts + s * L + 32 * i);
    }
#pragma unroll
    for (int s = 0; s < S; ++s) {
      if (!named[s]) continue;
#pragma unroll
      for (int i = 0; i < L / 32; ++i) {
        if (s == 0)
          row.selected[i] = part[0][i];
        else
          add(row.selected[i], part[s][i]);
      }
    }
  }
  const Moments own = moments(row);
  if (column == 0 && inside) of_rows[place] = own;
  if (inside) {
    const float* gates = problem.u.at(sequence.index, sequence.first_token + token, head) + column;
#pragma unroll
    for (int i = 0; i < L / 32; ++i) u[i] = load4(gates + 32 * i);
  }
  __syncthreads();
  const int first_head = inside ? place - head : 0;
  const float4 n = normaliser<L>(heads, Shape::A, [&](int h) { return of_rows[first_head + h]; });
  if (inside)
    store_normalised<L>(problem.o.at(sequence.index, sequence.first_token + token, head) + column,
                        u, row, n);
}

}  // namespace kernelmint::hstu
