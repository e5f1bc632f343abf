// The first steps of both schedules of block-sparse attention: the mean keys and values of the
// blocks, and, for 16 queries a warp, the compressed branch and the lists of blocks.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "hstu/sm80_best.cuh"
#include "hstu/sm80_operands.cuh"
#include "hstu/sm80_problem.cuh"
#include "hstu/sm80_products.cuh"
#include "integers.h"
#include "ptx/dependent_launch.cuh"

namespace kernelmint::hstu {

inline constexpr int kPoolThreads = 128;

template <class Shape>
using PackedOf = PackedRows<Shape::A, Shape::L>;

// A block's keys, then its values, in 16 bytes.
template <class Shape>
constexpr int kPackedBlock = Shape::block_size * (Shape::A + Shape::L) / 8;

// A step of blocks is taken at once: after the last block of a sequence, bf16 has zeros.
template <class Shape>
__device__ __forceinline__ int mean_count(const Sequence& sequence) {
  const int blocks = static_cast<int>(ceil_div<Shape::block_size>(sequence.length));
  return Shape::dot == Dot::bf16 ? ceil_div<Shape::step>(blocks) * Shape::step : blocks;
}

// The place of a head's first mean key among the mean keys of all sequences and heads, and of its
// value.
template <class Shape>
__device__ __forceinline__ std::int64_t first_mean(const Problem& problem, const Sequence& sequence,
                                                   int head) {
  const std::int64_t spare = Shape::dot == Dot::bf16 ? (Shape::step - 1) * sequence.index : 0;
  return (sequence.first_block + spare) * problem.heads + head * mean_count<Shape>(sequence);
}

// The columns of 4 floats that a warp of pool_blocks takes: one lane for each and every 16 tokens.
template <class Shape>
constexpr int kPooledColumns = 512 / Shape::block_size;

// The mean key and value of each block; packs the block on the way if the schedule wants it, and
// resets its counters.
template <class Config, class Shape>
__global__ void __launch_bounds__(kPoolThreads)
    pool_blocks(const ProblemOf<Shape> problem, int blocks) {
  constexpr int kColumns = kPooledColumns<Shape>;
  ptx::let_next_kernel_start();
  const std::int64_t item = std::int64_t{blockIdx.x} * kPoolThreads + threadIdx.x;
  if constexpr (Shape::schedule == Schedule::tiles) {
    const std::int64_t step = std::int64_t{gridDim.x} * kPoolThreads;
    for (std::int64_t i = item; i < problem.num_arrivals(); i += step) problem.arrivals[i] = 0;
  }
  const int columns = static_cast<int>(problem.heads) * ((Shape::A + Shape::L) / 4);
  const int groups = ceil_div<kColumns>(columns);
  const std::int64_t warp = item / 32;
  const int lane = threadIdx.x % 32, step = lane / kColumns;
  const int b = static_cast<int>(warp / (std::int64_t{groups} * blocks));
  if (b >= problem.sequences) return;
  const Sequence sequence = problem.sequence(b, Shape::block_size);
  const int c = static_cast<int>(warp / groups % blocks);
  if (c >= mean_count<Shape>(sequence)) return;
  const std::int64_t begin = std::int64_t{c} * Shape::block_size;
  // Neighbouring lanes take neighbouring columns of k, all heads, then of v. A lane past the last
  // column repeats it.
  int column = min(static_cast<int>(warp % groups) * kColumns + lane % kColumns, columns - 1) * 4;
  const bool is_key = column < problem.heads * Shape::A;
  const int size = is_key ? Shape::A : Shape::L;
  if (!is_key) column -= static_cast<int>(problem.heads) * Shape::A;
  const int h = column / size, d = column % size;
  const Rows<const float>& rows = is_key ? problem.k : problem.v;
  const float* from = rows.at(b, sequence.first_token + begin, h) + d;
  const int count = static_cast<int>(
      sequence.length - begin < Shape::block_size ? sequence.length - begin : Shape::block_size);
  float4 x[4][4];
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int j = 16 * step + 2 * pair + i % 2 + i / 2 * 8;
      x[pair][i] = j < count ? load4(from + j * rows.token) : float4{0, 0, 0, 0};
    }
  }
  float4 sum = {0, 0, 0, 0};
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 y = x[pair][i];
      sum.x += y.x, sum.y += y.y, sum.z += y.z, sum.w += y.w;
    }
    if constexpr (Shape::packs) {
      if (count <= 0) continue;
      uint4* to = problem.packed_blocks +
                  ((sequence.first_block + c) * problem.heads + h) * kPackedBlock<Shape>;
      if (is_key)
        PackedOf<Shape>::store_keys(to + step * PackedOf<Shape>::kKeys, pair, d, x[pair]);
      else
        PackedOf<Shape>::store_values(
            to + Shape::block_size * Shape::A / 8 + step * PackedOf<Shape>::kValues, pair, d,
            x[pair]);
    }
  }
#pragma unroll
  for (int distance = kColumns; distance < 32; distance *= 2) {
    sum.x += __shfl_xor_sync(~0u, sum.x, distance);
    sum.y += __shfl_xor_sync(~0u, sum.y, distance);
    sum.z += __shfl_xor_sync(~0u, sum.z, distance);
    sum.w += __shfl_xor_sync(~0u, sum.w, distance);
  }
  if (step != 0) return;
  constexpr float kShare = 1.0f / Shape::block_size;
  sum = {sum.x * kShare, sum.y * kShare, sum.z * kShare, sum.w * kShare};
  typename Shape::Partial* const to =
      (is_key ? problem.k_means : problem.v_means) + first_mean<Shape>(problem, sequence, h) * size;
  if constexpr (Shape::dot == Dot::bf16) {
    uint4* packed = reinterpret_cast<uint4*>(to);
    if (is_key)
      PackedOf<Shape>::store_key(packed, c, d, sum);
    else
      PackedOf<Shape>::store_value(packed, c, d, sum);
  } else {
    store4(to + c * size + d, sum);
  }
}

// The findings of a warp's 16 rows: the compressed branch, but for its gate, and the lists. Among
// the four lanes of the rows g and g + 8, the even lanes have the first row's list, the odd lanes
// the second row's.
template <class Shape>
struct RowScores {
  float out[Shape::L / 8][4] = {};
  Best<Shape::block_count> best;
};

// Returns which of its two rows' lists a lane has.
__device__ __forceinline__ int listed_row(int t) { return t % 2; }

// Scores the blocks for the rows `first` to `first` + 15 of a sequence, of which this lane has
// `row[0]` and `row[1]`.
template <class Shape, class Queries>
__device__ __forceinline__ void score_rows(RowScores<Shape>& found,
                                           const MeansProblem<Shape>& problem,
                                           const Sequence& sequence, int head,
                                           const Queries& queries, int first, const int (&row)[2],
                                           int g, int t) {
  constexpr int A = Shape::A, L = Shape::L, kBlockSize = Shape::block_size;
  constexpr int kStep = Shape::step;
  constexpr Semantics kMode = Shape::semantics;
  const int length = static_cast<int>(sequence.length);
  const int blocks = ceil_div<kBlockSize>(length);
  const int last_row = first + 15 < length ? first + 15 : length - 1;
  const int end = kMode.rank_unseen ? blocks : last_row / kBlockSize + 1;
  const std::int64_t first_block = first_mean<Shape>(problem, sequence, head);
  const auto* k_means = problem.k_means + first_block * A;
  const auto* v_means = problem.v_means + first_block * L;
  const auto means = [&](int begin, auto seen_by_all) {
    if constexpr (Shape::dot == Dot::bf16) {
      const int steps = begin / kStep;
      return PackedOf<Shape>(
          reinterpret_cast<const uint4*>(k_means) + steps * PackedOf<Shape>::kKeys,
          reinterpret_cast<const uint4*>(v_means) + steps * PackedOf<Shape>::kValues, g, t);
    } else {  // blocks past the end read the last one
      const int last = decltype(seen_by_all)::value ? kStep : blocks - 1 - begin;
      return RowsInMemory<Shape::dot>{k_means + begin * A, v_means + begin * L, A, L, last};
    }
  };
  Best<Shape::block_count> best[2];
  // A row sees the blocks that are complete at its token; in one mode the first rows see all.
  int own[2], seen_blocks[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    own[i] = row[i] / kBlockSize;
    const bool open = kMode.open_first_rows && row[i] < kBlockSize - 1;
    seen_blocks[i] = open ? blocks : min((row[i] + 1) / kBlockSize, blocks);
  }

  const auto step = [&](int begin, auto seen_by_all) {
    constexpr bool kAllSeen = decltype(seen_by_all)::value;
    const auto block = means(begin, seen_by_all);
    float scores[2][4] = {};
    multiply_queries_keys<A, Shape::dot>(scores, queries,
                                         [&](int slice) { return block.keys(0, slice, g, t); });
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int c = begin + 8 * i + 2 * t + e % 2;
        const float score = silu(scores[i][e], A);
        if constexpr (kAllSeen) {
          scores[i][e] = score;
          best[e / 2].offer(rank(score), c);
          continue;
        }
        const bool seen = c < seen_blocks[e / 2], local = c == own[e / 2];
        scores[i][e] = seen ? score : 0.0f;
        const bool ranked = local || seen || (kMode.rank_unseen && c < blocks);
        best[e / 2].offer(!ranked ? -INFINITY : local ? kMode.local_rank : rank(scores[i][e]), c);
      }
    }
    multiply_weights_values<L, Shape::dot>(found.out, scores,
                                           [&](int chunk) { return block.values(0, chunk, g, t); });
  };
  int begin = 0;
  for (; begin + kStep <= (first + 1) / kBlockSize; begin += kStep) step(begin, std::true_type{});
  for (; begin < end; begin += kStep) step(begin, std::false_type{});
  // Each lane sends the list it does not keep.
  using Lists = Best<Shape::block_count>;
  const bool first_list = listed_row(t) == 0;
  found.best = Lists::choose(first_list, best[0], best[1]);
  const int lane = 4 * g + t;
  found.best.merge(Lists::choose(first_list, best[1], best[0]).of_lane(lane ^ 1));
  found.best.merge(found.best.of_lane(lane ^ 2));
  if constexpr (kMode.share_time) found.best = found.best.of_lane(lane & ~4);  // an even row's
}

// Calls `write(s, block)` for the entries of this lane's list that are its to write: -1 for none,
// or a block that lies ahead of `row`, which is this lane's listed_row.
template <class Shape, class Write>
__device__ __forceinline__ void for_each_entry(const RowScores<Shape>& found, int row, int t,
                                               Write write) {
#pragma unroll
  for (int s = 0; s < Shape::block_count; ++s) {
    if (s % 2 != t / 2) continue;
    const int c = found.best.index[s];
    write(s, c > row / Shape::block_size ? -1 : c);
  }
}

// Writes the lists of 16 rows; `row` is this lane's listed_row.
template <class Shape>
__device__ __forceinline__ void store_lists(const RowScores<Shape>& found, const Problem& problem,
                                            const Sequence& sequence, int head, int row, int t) {
  constexpr int S = Shape::block_count;
  constexpr Semantics kMode = Shape::semantics;
  if (kMode.share_heads && head % 2 == 1) return;  // the even head writes both lists
  if (row >= sequence.length) return;
  const int blocks = static_cast<int>(ceil_div<Shape::block_size>(sequence.length));
  const int listed = blocks < S && problem.offsets == nullptr ? blocks : S;
  const bool twice = kMode.share_heads && head + 1 < problem.heads;
  std::int64_t* list = problem.lists.at(sequence.index, sequence.first_token + row, head);
  for_each_entry(found, row, t, [&](int s, int c) {
    if (s >= listed) return;
    list[s] = c;
    if (twice) list[problem.lists.head + s] = c;
  });
}

// The gates of both rows, which turn RowScores::out into the compressed branch.
template <class Shape>
__device__ __forceinline__ float2 compressed_gates(const Problem& problem, const Sequence& sequence,
                                                   int head, const int (&row)[2]) {
  const auto gate = [&](int i) {
    return row[i] < sequence.length
               ? *problem.g_cmp.at(sequence.index, sequence.first_token + row[i], head)
               : 0.0f;
  };
  return {gate(0), gate(1)};
}

struct AttendOptions {
  bool masked;    // true if keys after a row's own are left out
  bool unrolled;  // true if the compiler may load a step's operands ahead
};

// out += A times the contribution of block c, whose operands are `block`, to 16 rows.
template <class Shape, AttendOptions kOptions, class Queries, class Block>
__device__ __forceinline__ void attend_rows(float (&out)[Shape::L / 8][4], const Queries& queries,
                                            const int (&row)[2], int c, const Block& block, int g,
                                            int t) {
#pragma unroll(kOptions.unrolled ? Shape::block_size / 16 : 1)
  for (int step = 0; step < Shape::block_size / 16; ++step) {
    float weights[2][4] = {};
    multiply_queries_keys<Shape::A, Shape::dot>(
        weights, queries, [&](int slice) { return block.keys(step, slice, g, t); });
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = c * Shape::block_size + 16 * step + 8 * i + 2 * t + e % 2;
        const float weight = silu(weights[i][e]);
        weights[i][e] = kOptions.masked && key > row[e / 2] ? 0.0f : weight;
      }
    }
    multiply_weights_values<Shape::L, Shape::dot>(
        out, weights, [&](int chunk) { return block.values(step, chunk, g, t); });
  }
}

}  // namespace kernelmint::hstu
