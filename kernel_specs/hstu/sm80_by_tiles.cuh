// Block-sparse attention for HSTU by tiles of queries, in two kernels: the means, then all else.
//
// A thread block has a tile of queries of one head. It scores them, sorts their lists by block, and
// lets each block meet those of its queries that chose it, gathered, sixteen a warp; what the
// blocks contribute stays in shared memory. Only LayerNorm needs the other heads of a token: each
// thread block publishes its heads' moments and waits for those of the others.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "hstu/problem.h"
#include "hstu/sm80_normalise.cuh"
#include "hstu/sm80_products.cuh"
#include "hstu/sm80_scores.cuh"
#include "ptx/dependent_launch.cuh"

// How often a thread block looks for the others, each time for some 0.7 microseconds; a test builds
// with 0.
#ifndef KERNELMINT_HSTU_PATIENCE
#define KERNELMINT_HSTU_PATIENCE 1000
#endif

namespace kernelmint::hstu {

inline constexpr int kMostTileBlocks = 1024;  // of one sequence: counted in shared memory

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
  alignas(16) Partial parts[kEntries][Shape::L + 4];  // what each entry's block contributes
  alignas(16) Partial queries[Shape::tile][Shape::A + 4];
  int ends[kMostTileBlocks];  // how many chose a block; then where its entries end
  Unit units[kEntries];
  std::int16_t lists[kEntries];   // the block of each entry, or -1
  std::uint16_t order[kEntries];  // entries by block
  int warp_sums[Shape::warps];
  int unit_count;
  std::uint32_t finishing;  // heads that this thread block normalises, besides its own

  // Once its parts are added up, a row's sum takes their place: L floats in the room of the others.
  __device__ __forceinline__ float2* selected(int place) {
    static_assert(kOthers * sizeof(parts[0]) >= Shape::L * sizeof(float));
    return reinterpret_cast<float2*>(parts[place * kOthers]);
  }
};

template <class Shape>
__device__ __forceinline__ auto block_operands(const Problem& problem, const Sequence& sequence,
                                               int head, int c, int g, int t) {
  if constexpr (Shape::packs) {
    const uint4* first = static_cast<const uint4*>(problem.packed) +
                         (sequence.first_block * problem.heads + head) * kPackedBlock<Shape>;
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
    own[i] = count | (count + 15) / 16 << 16;
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

// Counts those heads of a tile that have published their moments (the lowest byte) and notes those
// that left before all had (a bit each of the other 24): the last to come does their work. Nobody
// waits for long, so kernels that share the device cannot wait for each other for ever.
//
// All threads call these; what they say is the same in each.
class Arrival {
 public:
  __device__ Arrival(std::uint32_t* state, int heads) : state_(state), heads_(heads) {}

  // Whether all heads are there. `left`: those that are not waiting any more.
  __device__ __forceinline__ bool arrive(std::uint32_t& left) {
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence();
      const std::uint32_t before = atomicAdd(state_, 1);
      bool complete = static_cast<int>(before & 0xff) + 1 == heads_;
      left = complete ? before >> 8 : 0;
      for (int i = 0; i < KERNELMINT_HSTU_PATIENCE && !complete; ++i) {
        __nanosleep(20);
        complete = static_cast<int>(*static_cast<volatile std::uint32_t*>(state_) & 0xff) == heads_;
      }
      __threadfence();
      complete_ = complete;
    }
    return agreed();
  }

  // Whether the last one will do the work of `head`: not so if it came in the meantime.
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

template <class Config, class Shape>
__global__ void __launch_bounds__(Shape::threads, kResidentTiles<Shape>)
    attend_tiles(const Problem problem) {
  constexpr int A = Shape::A, L = Shape::L, S = Shape::block_count;
  using Memory = TileMemory<Shape>;
  constexpr int kOthers = Memory::kOthers;
  using Partial = typename Shape::Partial;
  extern __shared__ uint4 dynamic_memory[];
  Memory& memory = *reinterpret_cast<Memory*>(dynamic_memory);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int heads = static_cast<int>(problem.heads);

  // The heads of a tile lie next to each other, so that they run at the same time; the last tiles,
  // which see most blocks, go first.
  const int head = static_cast<int>(blockIdx.x) % heads;
  const int tile = static_cast<int>(gridDim.y - 1 - blockIdx.y);
  const Sequence sequence =
      problem.sequence(static_cast<int>(blockIdx.x) / heads, Shape::block_size);
  const int length = static_cast<int>(sequence.length);
  const int first_row = tile * Shape::tile;
  if (first_row >= length) return;

  for (int c = threadIdx.x; c < kMostTileBlocks; c += Shape::threads) memory.ends[c] = 0;
  {
    const float* from = problem.q.at(sequence.index, sequence.first_token + first_row, head);
#pragma unroll
    for (int i = 0; i < A / 8; ++i) {  // rows past the end repeat the last one
      const int item = (Shape::threads * i + static_cast<int>(threadIdx.x)) * 4;
      const int place = item / A, column = item % A;
      store4(&memory.queries[place][column],
             load4(from + min(place, length - 1 - first_row) * problem.q.token + column));
    }
  }
  __syncthreads();
  ptx::wait_for_kernel_ahead();

  // 16 rows a warp: scores, the compressed branch, and the rows' own block, which all have in
  // common. What comes of the two is kept in global memory, L elements each; behind them a row has
  // room for L floats.
  Partial* const kept = static_cast<Partial*>(problem.partial);
  const auto room = [&](int row, int h) {
    constexpr int kSize = S * L * static_cast<int>(sizeof(float) / sizeof(Partial));
    return ((sequence.first + row) * heads + h) * kSize;
  };
  const int first = first_row + 16 * warp;
  if (first < length) {
    const int place = 16 * warp + g;
    const int row[2] = {first + g, first + g + 8};
    const SharedQueries<A, Shape::dot> queries(memory.queries[place], memory.queries[place + 8], t);
    Partial* to[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) to[i] = row[i] < length ? kept + room(row[i], head) : nullptr;
    {
      RowScores<Shape> found;
      score_rows(found, problem, sequence, head, queries, first, row, g, t);
      store_lists(found, problem, sequence, head, row[listed_row(t)], t);
      const int listed = place + 8 * listed_row(t);
      for_each_entry(found, first_row + listed, t, [&](int s, int c) {
        if (s == 0) return;
        if (first_row + listed >= length) c = -1;
        memory.lists[listed * kOthers + s - 1] = static_cast<std::int16_t>(c);
        if (c >= 0) atomicAdd(&memory.ends[c], 1);
      });
      const float2 gates = compressed_gates<Shape>(problem, sequence, head, row);
      store_rows<L>(to[0], to[1], found.out, t, gates.x, gates.y);
    }
    const int own = first / Shape::block_size;
    float out[L / 8][4] = {};
    attend_rows<Shape, true, Shape::packs>(
        out, queries, row, own, block_operands<Shape>(problem, sequence, head, own, g, t), g, t);
#pragma unroll
    for (int i = 0; i < 2; ++i) to[i] = to[i] == nullptr ? nullptr : to[i] + L;
    store_rows<L>(to[0], to[1], out, t, 1.0f, 1.0f);
  } else {
    for (int i = lane; i < 16 * kOthers; i += 32) memory.lists[16 * warp * kOthers + i] = -1;
  }
  __syncthreads();
  sort_entries(memory);

  // The other blocks: a unit a warp.
  for (int u = warp; u < memory.unit_count; u += Shape::warps) {
    const Unit unit = memory.units[u];
    const int c = static_cast<int>(unit.block);
    int entry[2], row[2];
    const Partial* query[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = g + 8 * i;
      entry[i] = at < unit.count ? memory.order[unit.begin + at] : -1;
      const int place = max(entry[i], 0) / kOthers;
      row[i] = first_row + place;
      query[i] = memory.queries[place];
    }
    const Queries<A, Shape::dot> queries(query[0], query[1], t);
    float out[L / 8][4] = {};
    attend_rows<Shape, false, Shape::packs>(
        out, queries, row, c, block_operands<Shape>(problem, sequence, head, c, g, t), g, t);
    const auto to = [&](int i) { return entry[i] < 0 ? nullptr : memory.parts[entry[i]]; };
    store_rows<L>(to(0), to(1), out, t, 1.0f, 1.0f);
  }
  __syncthreads();

  // Normalising: eight lanes a row, four rows a warp at a time.
  constexpr int kTurns = 4;
  const int column = lane % 8 * 4, first_place = 16 * warp + lane / 8;
  const auto row_of = [&](int turn) { return first_row + first_place + 4 * turn; };
  const auto inside = [&](int turn) { return row_of(turn) < length; };
  const auto at = [&](int turn) { return (sequence.first + row_of(turn)) * heads; };
  const auto gated = [&](int turn, int h) {
    return problem.u.at(sequence.index, sequence.first_token + row_of(turn), h) + column;
  };
  const auto result = [&](int turn, int h) {
    return problem.o.at(sequence.index, sequence.first_token + row_of(turn), h) + column;
  };
  Moments* published = static_cast<Moments*>(problem.o_cmp);
  float4 u[kTurns][L / 32];
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int place = first_place + 4 * turn;
    const Partial* from = kept + room(min(row_of(turn), length - 1), head) + column;
    Branches<L> row;
    bool listed[kOthers], all = true;
#pragma unroll
    for (int s = 0; s < kOthers; ++s) all &= listed[s] = memory.lists[place * kOthers + s] >= 0;
#pragma unroll
    for (int i = 0; i < L / 32; ++i) {
      row.compressed[i] = load4(from + 32 * i);
      row.selected[i] = load4(from + L + 32 * i);
    }
    const auto part = [&](int s, int i) {
      return load4(memory.parts[place * kOthers + s] + column + 32 * i);
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
      float2* to = memory.selected(place) + (column + 32 * i) / 2;
      to[0] = {row.selected[i].x, row.selected[i].y};
      to[1] = {row.selected[i].z, row.selected[i].w};
    }
    const Moments own = moments(row);
    if (inside(turn) && lane % 8 == 0) published[at(turn) + head] = own;
  }
  // The sums of the rows' selected branch: of this thread block's own, and those it left.
  const auto own_sum = [&](int turn, int i) {
    const float2* from = memory.selected(first_place + 4 * turn) + (column + 32 * i) / 2;
    return float4{from[0].x, from[0].y, from[1].x, from[1].y};
  };
  const auto left_sum = [&](int turn, int h) {
    return reinterpret_cast<float*>(kept + room(row_of(turn), h) + 2 * L) + column;
  };
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
#pragma unroll
    for (int i = 0; i < L / 32; ++i)
      u[turn][i] = inside(turn) ? load4(gated(turn, head) + 32 * i) : float4{0, 0, 0, 0};
  }

  Arrival arrival(problem.progress + sequence.first / Shape::tile + sequence.index + tile, heads);
  if (threadIdx.x == 0) memory.finishing = 0;
  if (!arrival.arrive(memory.finishing)) {
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      if (!inside(turn)) continue;
#pragma unroll
      for (int i = 0; i < L / 32; ++i) store4(left_sum(turn, head) + 32 * i, own_sum(turn, i));
    }
    if (arrival.leave(head)) return;
  }
  // Two lanes a token.
  const std::int64_t token = sequence.first + min(first_row + 16 * warp + lane / 2, length - 1);
  const float4 normalisers =
      normaliser<L>(heads, A, [&](int h) { return __ldcg(published + token * heads + h); });
  const auto of_turn = [&](int turn) {
    const int from = 2 * (4 * turn + lane / 8);
    return float4{__shfl_sync(~0u, normalisers.x, from), __shfl_sync(~0u, normalisers.y, from),
                  __shfl_sync(~0u, normalisers.z, from), __shfl_sync(~0u, normalisers.w, from)};
  };
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const float4 n = of_turn(turn);
    if (!inside(turn)) continue;
    Branches<L> row;
#pragma unroll
    for (int i = 0; i < L / 32; ++i) {
      row.compressed[i] = load4(kept + room(row_of(turn), head) + column + 32 * i);
      row.selected[i] = own_sum(turn, i);
    }
    store_normalised<L>(result(turn, head), u[turn], row, n);
  }
  for (std::uint32_t heads_left = memory.finishing; heads_left != 0; heads_left &= heads_left - 1) {
    const int h = __ffs(static_cast<int>(heads_left)) - 1;
#pragma unroll 1
    for (int turn = 0; turn < kTurns; ++turn) {
      const float4 n = of_turn(turn);
      if (!inside(turn)) continue;
      Branches<L> row;
      float4 gates[L / 32];
#pragma unroll
      for (int i = 0; i < L / 32; ++i) {
        row.compressed[i] = load4(kept + room(row_of(turn), h) + column + 32 * i);
        row.selected[i] = load4(left_sum(turn, h) + 32 * i);
        gates[i] = load4(gated(turn, h) + 32 * i);
      }
      store_normalised<L>(result(turn, h), gates, row, n);
    }
  }
}

}  // namespace kernelmint::hstu
