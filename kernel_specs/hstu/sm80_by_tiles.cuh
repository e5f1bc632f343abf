// Block-sparse attention for HSTU by tiles of queries, in two kernels: the means, then all else.
//
// A thread block has a tile of queries of one head. It scores them, sorts their lists by block, and
// lets each block meet the queries that chose it, gathered, sixteen a warp; the blocks'
// contributions stay in shared memory. Only LayerNorm needs the other heads of a token: each thread
// block publishes its heads' moments and waits for the others' moments.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "hstu/problem.h"
#include "hstu/sm80_normalise.cuh"
#include "hstu/sm80_products.cuh"
#include "hstu/sm80_scores.cuh"
#include "integers.h"
#include "ptx/dependent_launch.cuh"

// How often a thread block polls for the others, some 0.7 microseconds each time; a test builds
// with 0.
#ifndef KERNELMINT_HSTU_MAX_POLLS
#define KERNELMINT_HSTU_MAX_POLLS 1000
#endif

namespace kernelmint::hstu {

inline constexpr int kMostTileBlocks = 1024;  // blocks of one sequence: counted in shared memory

template <class Shape>
constexpr int kResidentTiles = 16 / Shape::warps;

// Up to 16 entries of one block, from `begin` on in the order of the sorted entries.
struct Unit {
  std::uint32_t block : 10, begin : 12, count : 10;
};

// Shared memory of a tile. An entry is a query and a place in its list, but for the first: that is
// the query's own block, which every mode that has tiles ranks first.
template <class Shape>
struct TileMemory {
  using Partial = typename Shape::Partial;
  static constexpr int kOthers = Shape::block_count - 1;
  static constexpr int kEntries = Shape::tile * kOthers;

  // Rows are four elements longer than they need be, so that they begin in different banks.
  alignas(16) Partial parts[kEntries][Shape::L + 4];  // the contribution of each entry's block
  alignas(16) Partial queries[Shape::tile][Shape::A + 4];
  int ends[kMostTileBlocks];  // how many chose a block; then where its entries end
  Unit units[kEntries];
  std::int16_t lists[kEntries];   // the block of each entry, or -1
  std::uint16_t order[kEntries];  // entries by block
  int warp_sums[Shape::warps];
  int unit_count;
  std::uint32_t finishing;  // heads that this thread block normalises, besides its own

  // Once its parts are added up, a row's sum takes their place: L floats where they were.
  __device__ __forceinline__ float2* selected(int place) {
    static_assert(kOthers * sizeof(parts[0]) >= Shape::L * sizeof(float));
    return reinterpret_cast<float2*>(parts[place * kOthers]);
  }
};

template <class Shape>
__device__ __forceinline__ auto block_operands(const TilesProblem<Shape>& problem,
                                               const Sequence& sequence, int head, int c, int g,
                                               int t) {
  if constexpr (Shape::packs) {
    const uint4* first =
        problem.packed_blocks + (sequence.first_block * problem.heads + head) * kPackedBlock<Shape>;
    first += c * (static_cast<int>(problem.heads) * kPackedBlock<Shape>);
    return PackedOf<Shape>(first, first + Shape::block_size * Shape::A / 8, g, t);
  } else {
    const std::int64_t first = sequence.first_token + c * Shape::block_size;
    return RowsInMemory<Shape::dot>{problem.k.at(sequence.index, first, head),
                                    problem.v.at(sequence.index, first, head), problem.k.token,
                                    problem.v.token,
                                    static_cast<int>(sequence.length) - 1 - c * Shape::block_size};
  }
}

// Sorts the entries of a tile's lists by block and divides them into units, at most 16 entries of
// one block each. In which order a block's entries come is left open: nothing depends on it.
template <class Shape>
__device__ __forceinline__ void sort_entries(TileMemory<Shape>& memory) {
  constexpr int kEach = kMostTileBlocks / Shape::threads;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first = static_cast<int>(threadIdx.x) * kEach;
  // Entries in the lower half, units in the upper.
  int own[kEach], sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int count = memory.ends[first + i];
    own[i] = count | ceil_div<16>(count) << 16;
    sum += own[i];
  }
  int inclusive = sum;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int below = __shfl_up_sync(~0u, inclusive, distance);
    if (lane >= distance) inclusive += below;
  }
  if (lane == 31) memory.warp_sums[warp] = inclusive;
  __syncthreads();
  int start = inclusive - sum;
#pragma unroll
  for (int w = 0; w < Shape::warps; ++w) {
    if (w < warp) start += memory.warp_sums[w];
  }
  if (threadIdx.x == Shape::threads - 1) memory.unit_count = (start + sum) >> 16;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int begin = start & 0xffff, count = own[i] & 0xffff;
    int unit = start >> 16;
    for (int at = 0; at < count; at += 16)
      memory.units[unit++] = {static_cast<unsigned>(first + i), static_cast<unsigned>(begin + at),
                              static_cast<unsigned>(min(count - at, 16))};
    memory.ends[first + i] = begin;
    start += own[i];
  }
  __syncthreads();
  for (int entry = threadIdx.x; entry < TileMemory<Shape>::kEntries; entry += Shape::threads) {
    const int c = memory.lists[entry];
    if (c >= 0) memory.order[atomicAdd(&memory.ends[c], 1)] = static_cast<std::uint16_t>(entry);
  }
  __syncthreads();
}

// Counts the heads of a tile that have published their moments (the lowest byte) and notes the
// heads that left before all had (a bit each of the other 24): the last to come does their work.
// Nobody waits for long, so kernels that share the device cannot wait for each other for ever.
//
// All threads call these, and all get the same answer.
class Arrival {
 public:
  __device__ Arrival(std::uint32_t* state, int heads) : state_(state), heads_(heads) {}

  // Returns whether all heads are there. `left`: the heads that are not waiting any more.
  __device__ __forceinline__ bool arrive(std::uint32_t& left) {
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence();
      const std::uint32_t before = atomicAdd(state_, 1);
      bool complete = static_cast<int>(before & 0xff) + 1 == heads_;
      left = complete ? before >> 8 : 0;
      for (int poll = 0; poll < KERNELMINT_HSTU_MAX_POLLS && !complete; ++poll) {
        __nanosleep(20);
        complete = static_cast<int>(*static_cast<volatile std::uint32_t*>(state_) & 0xff) == heads_;
      }
      __threadfence();
      complete_ = complete;
    }
    return agreed();
  }

  // Returns whether the last head will do the work of `head`: not if it came in the meantime.
  __device__ __forceinline__ bool leave(int head) {
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence();
      const std::uint32_t before = atomicOr(state_, 1u << (8 + head));
      __threadfence();
      complete_ = static_cast<int>(before & 0xff) != heads_;
    }
    return agreed();
  }

 private:
  __device__ __forceinline__ bool agreed() { return __syncthreads_or(complete_); }

  std::uint32_t* state_;
  int heads_;
  bool complete_ = false;
};

// A thread block's queries: the queries of one head from row `first_row` of the sequence on. A
// `place` is a row's number within the tile.
struct Tile {
  Sequence sequence;
  int length;  // the sequence's
  int number, first_row, head;

  __device__ __forceinline__ int row(int place) const { return first_row + place; }
  __device__ __forceinline__ bool has(int place) const { return row(place) < length; }
};

template <class Shape>
__device__ __forceinline__ TileRow<Shape>* tile_row(const TilesProblem<Shape>& problem,
                                                    const Tile& tile, int row, int head) {
  return problem.rows + ((tile.sequence.first + row) * static_cast<int>(problem.heads) + head);
}

// Queries into shared memory, as the products take them; and no block is chosen yet.
template <class Shape>
__device__ __forceinline__ void load_queries(TileMemory<Shape>& memory,
                                             const TilesProblem<Shape>& problem, const Tile& tile) {
  constexpr int A = Shape::A;
  for (int c = threadIdx.x; c < kMostTileBlocks; c += Shape::threads) memory.ends[c] = 0;
  const float* from =
      problem.q.at(tile.sequence.index, tile.sequence.first_token + tile.first_row, tile.head);
#pragma unroll
  for (int i = 0; i < A / 8; ++i) {  // rows past the end repeat the last one
    const int item = (Shape::threads * i + static_cast<int>(threadIdx.x)) * 4;
    const int place = item / A, column = item % A;
    store4(&memory.queries[place][column],
           load4(from + min(place, tile.length - 1 - tile.first_row) * problem.q.token + column));
  }
}

// 16 rows a warp: scores, lists, the compressed branch, and the rows' own block, which all have in
// common.
template <class Shape>
__device__ __forceinline__ void score_queries(TileMemory<Shape>& memory,
                                              const TilesProblem<Shape>& problem,
                                              const Tile& tile) {
  constexpr int L = Shape::L, kOthers = TileMemory<Shape>::kOthers;
  using Partial = typename Shape::Partial;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int first = tile.row(16 * warp);
  if (first >= tile.length) {
    for (int i = lane; i < 16 * kOthers; i += 32) memory.lists[16 * warp * kOthers + i] = -1;
    return;
  }
  const int place = 16 * warp + g;
  const int row[2] = {first + g, first + g + 8};
  const SharedQueries<Shape::A, Shape::dot> queries(memory.queries[place],
                                                    memory.queries[place + 8], t);
  Partial* to[2];
#pragma unroll
  for (int i = 0; i < 2; ++i)
    to[i] = row[i] < tile.length ? tile_row(problem, tile, row[i], tile.head)->compressed : nullptr;
  {
    RowScores<Shape> found;
    score_rows(found, problem, tile.sequence, tile.head, queries, first, row, g, t);
    store_lists(found, problem, tile.sequence, tile.head, row[listed_row(t)], t);
    const int listed = place + 8 * listed_row(t);
    for_each_entry(found, tile.row(listed), t, [&](int s, int c) {
      if (s == 0) return;
      if (!tile.has(listed)) c = -1;
      memory.lists[listed * kOthers + s - 1] = static_cast<std::int16_t>(c);
      if (c >= 0) atomicAdd(&memory.ends[c], 1);
    });
    const float2 gates = compressed_gates<Shape>(problem, tile.sequence, tile.head, row);
    store_rows<L>(to[0], to[1], found.out, t, gates.x, gates.y);
  }
  const int own = first / Shape::block_size;
  float out[L / 8][4] = {};
  attend_rows<Shape, AttendOptions{.masked = true, .unrolled = Shape::packs}>(
      out, queries, row, own, block_operands<Shape>(problem, tile.sequence, tile.head, own, g, t),
      g, t);
#pragma unroll
  for (int i = 0; i < 2; ++i) to[i] = to[i] == nullptr ? nullptr : to[i] + L;  // own_block
  store_rows<L>(to[0], to[1], out, t, 1.0f, 1.0f);
}

// The other blocks: a unit a warp. What a block contributes stays in shared memory.
template <class Shape>
__device__ __forceinline__ void attend_units(TileMemory<Shape>& memory,
                                             const TilesProblem<Shape>& problem, const Tile& tile) {
  constexpr int L = Shape::L, kOthers = TileMemory<Shape>::kOthers;
  using Partial = typename Shape::Partial;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  for (int number = warp; number < memory.unit_count; number += Shape::warps) {
    const Unit unit = memory.units[number];
    const int c = static_cast<int>(unit.block);
    int entry[2], row[2];
    const Partial* query[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = g + 8 * i;
      entry[i] = at < unit.count ? memory.order[unit.begin + at] : -1;
      const int place = max(entry[i], 0) / kOthers;
      row[i] = tile.row(place);
      query[i] = memory.queries[place];
    }
    const Queries<Shape::A, Shape::dot> queries(query[0], query[1], t);
    float out[L / 8][4] = {};
    attend_rows<Shape, AttendOptions{.masked = false, .unrolled = Shape::packs}>(
        out, queries, row, c, block_operands<Shape>(problem, tile.sequence, tile.head, c, g, t), g,
        t);
    const auto to = [&](int i) { return entry[i] < 0 ? nullptr : memory.parts[entry[i]]; };
    store_rows<L>(to(0), to(1), out, t, 1.0f, 1.0f);
  }
}

// The rows that a lane normalises a part of: eight lanes a row, four rows a warp at a time, in four
// passes.
template <class Shape>
struct TilePasses {
  static constexpr int kCount = 4;
  const TilesProblem<Shape>& problem;
  const Tile& tile;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int column = lane % 8 * 4;

  __device__ __forceinline__ int place(int pass) const { return 16 * warp + lane / 8 + 4 * pass; }
  __device__ __forceinline__ int row(int pass) const { return tile.row(place(pass)); }
  __device__ __forceinline__ bool inside(int pass) const { return row(pass) < tile.length; }
  __device__ __forceinline__ const float* gate(int pass, int head) const {
    return problem.u.at(tile.sequence.index, tile.sequence.first_token + row(pass), head) + column;
  }
  __device__ __forceinline__ float* result(int pass, int head) const {
    return problem.o.at(tile.sequence.index, tile.sequence.first_token + row(pass), head) + column;
  }
  // The sum left by another head's thread block, which has ended.
  __device__ __forceinline__ float* left_sum(int pass, int head) const {
    return tile_row(problem, tile, row(pass), head)->selected + column;
  }
  __device__ __forceinline__ const typename Shape::Partial* compressed(int pass, int head) const {
    return tile_row(problem, tile, row(pass), head)->compressed + column;
  }
  __device__ __forceinline__ float2* own_sum(TileMemory<Shape>& memory, int pass, int i) const {
    return memory.selected(place(pass)) + (column + 32 * i) / 2;
  }
  // The row's normalisers, out of those of a token, of which two lanes hold two each.
  __device__ __forceinline__ float4 of_row(float4 normalisers, int pass) const {
    const int from = 2 * (4 * pass + lane / 8);
    return {__shfl_sync(~0u, normalisers.x, from), __shfl_sync(~0u, normalisers.y, from),
            __shfl_sync(~0u, normalisers.z, from), __shfl_sync(~0u, normalisers.w, from)};
  }
};

// Adds up each row's selected branch, in the order of its list, and publishes the moments of both.
template <class Shape>
__device__ __forceinline__ void add_up(TileMemory<Shape>& memory, const TilePasses<Shape>& passes) {
  constexpr int L = Shape::L, kOthers = TileMemory<Shape>::kOthers;
  const Tile& tile = passes.tile;
#pragma unroll
  for (int pass = 0; pass < passes.kCount; ++pass) {
    const int place = passes.place(pass);
    const TileRow<Shape>* from =
        tile_row(passes.problem, tile, min(passes.row(pass), tile.length - 1), tile.head);
    Branches<L> row;
    bool listed[kOthers], all = true;
#pragma unroll
    for (int s = 0; s < kOthers; ++s) all &= listed[s] = memory.lists[place * kOthers + s] >= 0;
#pragma unroll
    for (int i = 0; i < L / 32; ++i) {
      row.compressed[i] = load4(from->compressed + passes.column + 32 * i);
      row.selected[i] = load4(from->own_block + passes.column + 32 * i);
    }
    const auto part = [&](int s, int i) {
      return load4(memory.parts[place * kOthers + s] + passes.column + 32 * i);
    };
    if (__all_sync(~0u, all)) {
#pragma unroll
      for (int s = 0; s < kOthers; ++s) {
#pragma unroll
        for (int i = 0; i < L / 32; ++i) add(row.selected[i], part(s, i));
      }
    } else {
#pragma unroll
      for (int s = 0; s < kOthers; ++s) {
#pragma unroll
        for (int i = 0; i < L / 32; ++i) {
          if (listed[s]) add(row.selected[i], part(s, i));
        }
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < L / 32; ++i) {
      float2* to = passes.own_sum(memory, pass, i);
      to[0] = {row.selected[i].x, row.selected[i].y};
      to[1] = {row.selected[i].z, row.selected[i].w};
    }
    const Moments own = moments(row);
    if (passes.inside(pass) && passes.lane % 8 == 0)
      passes.problem.moments[(tile.sequence.first + passes.row(pass)) *
                                 static_cast<int>(passes.problem.heads) +
                             tile.head] = own;
  }
}

template <class Shape>
__device__ __forceinline__ float4 own_sum(TileMemory<Shape>& memory,
                                          const TilePasses<Shape>& passes, int pass, int i) {
  const float2* from = passes.own_sum(memory, pass, i);
  return {from[0].x, from[0].y, from[1].x, from[1].y};
}

// Waits for the other heads' moments. Returns false if not all came; the last to come then
// normalises this head's rows from the values left here.
template <class Shape>
__device__ __forceinline__ bool all_heads_arrived(TileMemory<Shape>& memory,
                                                  const TilePasses<Shape>& passes) {
  const Tile& tile = passes.tile;
  Arrival arrival(passes.problem.arrivals + tile.sequence.first / Shape::tile +
                      tile.sequence.index + tile.number,
                  static_cast<int>(passes.problem.heads));
  if (threadIdx.x == 0) memory.finishing = 0;
  if (arrival.arrive(memory.finishing)) return true;
#pragma unroll
  for (int pass = 0; pass < passes.kCount; ++pass) {
    if (!passes.inside(pass)) continue;
#pragma unroll
    for (int i = 0; i < Shape::L / 32; ++i)
      store4(passes.left_sum(pass, tile.head) + 32 * i, own_sum(memory, passes, pass, i));
  }
  return !arrival.leave(tile.head);
}

// The normalisers of the tokens of a warp's rows: two lanes a token.
template <class Shape>
__device__ __forceinline__ float4 tile_normalisers(const TilePasses<Shape>& passes) {
  const Tile& tile = passes.tile;
  const int heads = static_cast<int>(passes.problem.heads);
  const std::int64_t token =
      tile.sequence.first + min(tile.row(16 * passes.warp + passes.lane / 2), tile.length - 1);
  const Moments* of_token = passes.problem.moments + token * heads;
  return normaliser<Shape::L>(heads, Shape::A, [&](int h) { return __ldcg(of_token + h); });
}

// This head's rows, whose gates `u` were loaded ahead.
template <class Shape>
__device__ __forceinline__ void normalise_own(
    TileMemory<Shape>& memory, const TilePasses<Shape>& passes, float4 normalisers,
    const float4 (&u)[TilePasses<Shape>::kCount][Shape::L / 32]) {
  constexpr int L = Shape::L;
  const int head = passes.tile.head;
#pragma unroll
  for (int pass = 0; pass < passes.kCount; ++pass) {
    const float4 n = passes.of_row(normalisers, pass);
    if (!passes.inside(pass)) continue;
    Branches<L> row;
#pragma unroll
    for (int i = 0; i < L / 32; ++i) {
      row.compressed[i] = load4(passes.compressed(pass, head) + 32 * i);
      row.selected[i] = own_sum(memory, passes, pass, i);
    }
    store_normalised<L>(passes.result(pass, head), u[pass], row, n);
  }
}

// The rows of the heads that have left.
template <class Shape>
__device__ __forceinline__ void normalise_left(const TilePasses<Shape>& passes, float4 normalisers,
                                               std::uint32_t heads_left) {
  constexpr int L = Shape::L;
  for (; heads_left != 0; heads_left &= heads_left - 1) {
    const int h = __ffs(static_cast<int>(heads_left)) - 1;
#pragma unroll 1
    for (int pass = 0; pass < passes.kCount; ++pass) {
      const float4 n = passes.of_row(normalisers, pass);
      if (!passes.inside(pass)) continue;
      Branches<L> row;
      float4 gates[L / 32];
#pragma unroll
      for (int i = 0; i < L / 32; ++i) {
        row.compressed[i] = load4(passes.compressed(pass, h) + 32 * i);
        row.selected[i] = load4(passes.left_sum(pass, h) + 32 * i);
        gates[i] = load4(passes.gate(pass, h) + 32 * i);
      }
      store_normalised<L>(passes.result(pass, h), gates, row, n);
    }
  }
}

template <class Config, class Shape>
__global__ void __launch_bounds__(Shape::threads, kResidentTiles<Shape>)
    attend_tiles(const TilesProblem<Shape> problem) {
  extern __shared__ uint4 dynamic_memory[];
  auto& memory = *reinterpret_cast<TileMemory<Shape>*>(dynamic_memory);
  // The heads of a tile lie next to each other, so that they run at the same time; the last tiles,
  // which see most blocks, go first.
  const int heads = static_cast<int>(problem.heads);
  const int number = static_cast<int>(gridDim.y - 1 - blockIdx.y);
  const Sequence sequence =
      problem.sequence(static_cast<int>(blockIdx.x) / heads, Shape::block_size);
  const Tile tile = {.sequence = sequence,
                     .length = static_cast<int>(sequence.length),
                     .number = number,
                     .first_row = number * Shape::tile,
                     .head = static_cast<int>(blockIdx.x) % heads};
  if (tile.first_row >= tile.length) return;

  load_queries(memory, problem, tile);
  __syncthreads();
  ptx::wait_for_kernel_ahead();
  score_queries(memory, problem, tile);
  __syncthreads();
  sort_entries(memory);
  attend_units(memory, problem, tile);
  __syncthreads();

  const TilePasses<Shape> passes = {.problem = problem, .tile = tile};
  add_up(memory, passes);
  float4 u[TilePasses<Shape>::kCount][Shape::L / 32];
#pragma unroll
  for (int pass = 0; pass < passes.kCount; ++pass) {
#pragma unroll
    for (int i = 0; i < Shape::L / 32; ++i)
      u[pass][i] =
          passes.inside(pass) ? load4(passes.gate(pass, tile.head) + 32 * i) : float4{0, 0, 0, 0};
  }
  if (!all_heads_arrived(memory, passes)) return;
  const float4 normalisers = tile_normalisers(passes);
  normalise_own(memory, passes, normalisers, u);
  normalise_left(passes, normalisers, memory.finishing);
}

}  // namespace kernelmint::hstu
