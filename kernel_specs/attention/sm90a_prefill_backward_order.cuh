// The order in which blocks of keys, and of queries, are worked on.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>

#include "attention/backward_sections.cuh"
#include "attention/prefill_backward_any_lengths.cuh"
#include "attention/sm90a_prefill_backward_problem.h"
#include "integers.h"

namespace kernelmint::flash_prefill_backward::sm90a {

template <class Config, class Args>
__device__ __forceinline__ int key_blocks_of(const Problem<Args>& problem, int sequence) {
  return ceil_div(keys_of<Config>(problem.args, problem.sequences, sequence).rows, Config::B_c);
}

// Sequences are sorted by their blocks of keys, of which those with more count as having so many.
inline constexpr int kMostCounted = 1023;
// The bytes of shared memory that this takes.
inline constexpr int kOrderBytes = 4 * (kMostCounted + 1);

// Makes the order, by a thread block of 256. Sequences with more keys come first, so that no long
// one begins when all others end.
template <class Config, class Args>
__device__ inline void make_order(const Problem<Args>& problem) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  // How many sequences there are, then where they begin, by the blocks that are missing to the
  // most.
  int* const starts = reinterpret_cast<int*>(shared_memory);
  const Order& order = problem.order;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const auto missing = [&](int sequence) {
    return max(kMostCounted - key_blocks_of<Config>(problem, sequence), 0);
  };
  for (int i = thread; i <= kMostCounted; i += 256) starts[i] = 0;
  __syncthreads();
  for (int s = thread; s < problem.sequences; s += 256) atomicAdd(&starts[missing(s)], 1);
  __syncthreads();
  // The sum of a lane's values, and of those of the lanes before it.
  const auto sum_up = [&](int sum) {
    for (int distance = 1; distance < 32; distance *= 2) {
      const int before = __shfl_up_sync(~0u, sum, distance);
      if (lane >= distance) sum += before;
    }
    return sum;
  };
  if (thread < 32) {
    constexpr int kOfLane = (kMostCounted + 1) / 32;
    int sum = 0;
    for (int i = 0; i < kOfLane; ++i) sum += starts[lane * kOfLane + i];
    int start = sum_up(sum) - sum;
    for (int i = 0; i < kOfLane; ++i) {
      const int count = starts[lane * kOfLane + i];
      starts[lane * kOfLane + i] = start;
      start += count;
    }
  }
  __syncthreads();
  for (int s = thread; s < problem.sequences; s += 256)
    order.sequences[atomicAdd(&starts[missing(s)], 1)] = s;
  __syncthreads();
  const auto query_blocks_of = [&](int sequence) {
    return ceil_div(queries_of<Config>(problem.args, problem.sequences, sequence).rows,
                    Config::B_r);
  };
  if (thread < 32) {
    int keys = 0, queries = 0;
    for (int first = 0; first < problem.sequences; first += 32) {
      const bool exists = first + lane < problem.sequences;
      const int sequence = exists ? order.sequences[first + lane] : 0;
      const int own_keys = exists ? key_blocks_of<Config>(problem, sequence) : 0;
      const int own_queries = exists ? query_blocks_of(sequence) : 0;
      const int keys_to_here = keys + sum_up(own_keys),
                queries_to_here = queries + sum_up(own_queries);
      if (exists) {
        order.first_key_places[sequence] = keys_to_here - own_keys;
        order.first_query_places[sequence] = queries_to_here - own_queries;
      }
      keys = __shfl_sync(~0u, keys_to_here, 31);
      queries = __shfl_sync(~0u, queries_to_here, 31);
    }
    // Lists that do not ascend could have more.
    if (thread == 0) {
      order.counts[0] = min(keys, problem.key_blocks);
      order.counts[1] = min(queries, problem.query_blocks);
    }
  }
  __syncthreads();
  const auto fill = [&](int* places, int first, int end, int sequence) {
    for (int place = first + lane; place < end; place += 32) places[place] = sequence;
  };
  for (int s = thread / 32; s < problem.sequences; s += 8) {
    const int keys = order.first_key_places[s], queries = order.first_query_places[s];
    fill(order.key_sequences, keys,
         min(keys + key_blocks_of<Config>(problem, s), problem.key_blocks), s);
    fill(order.query_sequences, queries, min(queries + query_blocks_of(s), problem.query_blocks),
         s);
  }
}

// How a sequence's key/value heads are worked on: in sections of `heads`, the last of which has all
// that are left. Each second lot of a section's tiles goes from the first queries on. The last
// sequence's last section may go from the last queries on though the others do not.
struct Sections {
  int heads, last, lot;
  bool last_goes_back;
};

// The sections of a sequence with so many blocks of keys: as many heads as are at work at one time,
// so that their Q, dO and dQ stay in L2; and see heads_there_and_back of flash_backward. Tiles of
// heads that share keys wait for each other if dQ has to be the same each time.
template <class Config, class Args>
__device__ __forceinline__ Sections sections_of(const Problem<Args>& problem, int blocks,
                                                int query_rows) {
  constexpr int kBytesOfRow = Config::d_head * (2 + 2 + 4);
  const auto& args = problem.args;
  const int heads = static_cast<int>(args.Hk), places = problem.multiprocessors;
  const bool from_last = args.window_left < 0 && args.window_right >= 0 && !problem.from_first;
  const int most = (Config::deterministic && from_last ? 8 : 32) / problem.group;
  const int at_work = (places + blocks / 2) / blocks;
  Sections sections{.heads = max(min(min(at_work, 8), min(most, heads)), 1),
                    .last = 0,
                    .lot = std::numeric_limits<int>::max()};
  if (Config::deterministic && problem.group == 1 && args.window_left < 0) {
    const bool masked = args.window_right >= 0;
    sections.heads = min(attention_backward::heads_in_turn<Config>(places, blocks, masked), heads);
    // One of the widest heads at a time comes to a block of queries just in time for its turn.
    if (masked && Config::d_head > 192) sections.heads = 1;
    sections.last = attention_backward::last_section_in_turn(heads, sections.heads);
    sections.last_goes_back =
        problem.from_first && attention_backward::last_section_goes_back(places, blocks);
    return sections;
  }
  const float bytes = 2.f * sections.heads * problem.group * query_rows * kBytesOfRow;
  if (from_last && problem.one_counter && blocks >= places / 8 && bytes >= places * 380'000.f) {
    sections.heads = min(ceil_div(2 * places * 19 / 20, blocks + 1), heads);
    sections.lot = places;
    sections.last = ceil_div(heads, sections.heads) - 1;
  } else {
    const bool joins = from_last && at_work < 8;
    sections.last = max(ceil_div(heads, sections.heads) - (joins ? 2 : 1), 0);
  }
  return sections;
}

// The index-th tile in this order; its number of blocks is negative if there are no more.
template <class Config, class Args>
__device__ __forceinline__ Tile tile_in_order(const Problem<Args>& problem, int index) {
  const int heads = static_cast<int>(problem.args.Hk), place = index / heads;
  if (place >= problem.order.counts[0]) return Tile{.blocks = -1};
  const int sequence = problem.order.key_sequences[place];
  const Region keys = keys_of<Config>(problem.args, problem.sequences, sequence);
  const int blocks = ceil_div(keys.rows, Config::B_c);
  const int query_rows = queries_of<Config>(problem.args, problem.sequences, sequence).rows;
  const Sections sections = sections_of<Config>(problem, blocks, query_rows);
  const int of_sequence = index - problem.order.first_key_places[sequence] * heads;
  const int section = min(of_sequence / (blocks * sections.heads), sections.last);
  const int first_head = section * sections.heads;
  const int at = of_sequence - first_head * blocks;
  const int section_heads = section == sections.last ? heads - first_head : sections.heads;
  const int block = at / section_heads;
  const bool is_last = section == sections.last &&
                       problem.order.first_key_places[sequence] + blocks >= problem.order.counts[0];
  const bool from_first = problem.from_first && !(sections.last_goes_back && is_last);
  return AnyLengths<Config, Problem<Args>>::tile_at(
      problem, sequence, keys, first_head + at % section_heads,
      from_first ? blocks - 1 - block : block, from_first || at / sections.lot % 2 == 1);
}

}  // namespace kernelmint::flash_prefill_backward::sm90a
