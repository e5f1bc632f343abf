// The arguments of a call's kernels, which tile a thread block takes, and whose turn it
// is to add to dQ: the same for all targets on a GPU.
#pragma once

#include <cstdint>

#include "attributes.h"

namespace kernelmint::flash_backward {

// True if more counters, after those of the heads, count the tiles that are taken, and those of
// each key/value head that are done.
template <class Config>
inline constexpr bool kCountsTiles = requires { Config::persistent; };

// True if the first kernel makes D of the first heads alone, and the main kernel that of all
// others.
template <class Config>
inline constexpr bool kLeavesSums = [] {
  if constexpr (kCountsTiles<Config>) return Config::makes_sums;
  return false;
}();

template <class Arguments>
struct Problem {
  using Args = Arguments;

  Args args;
  // For each row of scores, [B, H, query_blocks * B_r]: the log-sum-exp as a power of two, infinite
  // for a row without keys and for a row past the last query; and D, the sum of dO O.
  float *log_sums, *deltas;
  // dQ without its scale, [B, H, query_blocks], each B_r * padded_head floats in the order in which
  // the target's threads hold them.
  float* dq;
  unsigned* counters;  // [B, H, counters_of_head]: the target's counters, zero at first
  int counters_of_head;
  int kv_heads_ahead;  // if the main kernel makes D of heads, too: those whose D is there before
  // If the target counts tiles, and there are queries: the first tile that no thread block has; and
  // [B, Hk], how many of each key/value head are done.
  unsigned *next_tile, *tiles_done;
  int first_zero;  // the row of a head from which on dQ is zero before the main kernel
  int query_blocks, key_blocks;
  int group;            // query heads that share a key/value head
  int section_heads;    // key/value heads that are worked on together
  int last_section;     // the section that has all heads that are left
  int lot;              // so many tiles; each second lot goes from the diagonal on
  bool last_goes_back;  // if tiles go from the diagonal on: those of the last section do not
  int offset;           // Sk - Sq: under the causal mask query i sees keys up to i + offset
  float scale_log2;     // the scale, for powers of two
};

// The first rows whose D nobody makes yet, if the main kernel makes D; after it, [B, Hk], how many
// parts of each key/value head's D are there.
template <class Args>
KERNELMINT_HOST_DEVICE inline unsigned* next_sums(const Problem<Args>& problem) {
  return problem.tiles_done + problem.args.B * problem.args.Hk;
}

// The first block of queries that sees keys from `first_key` on.
template <class Config, class Args>
__device__ __forceinline__ int first_query_block(const Problem<Args>& problem, int first_key) {
  return Config::causal ? max(first_key - problem.offset, 0) / Config::B_r : 0;
}

// The index of a block of queries among all of the call, which a grid has no more of than 2^31 - 1.
template <class Args>
__device__ __forceinline__ int block_index(const Problem<Args>& problem, int batch, int head,
                                           int block) {
  return (batch * static_cast<int>(problem.args.H) + head) * problem.query_blocks + block;
}

// A block of keys, and the blocks of queries that see it, which every query head of its group has.
struct Tile {
  int key_block, kv_head, batch;
  int first_block, blocks;
  bool from_diagonal;  // it goes through its queries from the first on, not from the last on
};

// True if each second lot of a section's tiles, as many as are worked on at one time, may go from
// the diagonal on. The first lot begins together, at the last queries. Its shortest tiles are
// followed by the longest ones of the second lot, which so ends together, at the last queries, too:
// blocks of keys of a head are at the same queries at a time, and find them in L2.
template <class Config>
inline constexpr bool kThereAndBack = [] {
  if constexpr (requires { Config::there_and_back; }) return Config::there_and_back;
  return false;
}();

// True if blocks of keys go through the queries that see them from the first query on, which is
// on the mask's diagonal, and the last keys come before the first keys. Each block of keys then
// comes to a block of queries a step after the block of keys before it: if dQ has to be the same
// each time, this is its turn. Otherwise the first keys, which have the most queries, begin first,
// and go from the last queries to the first queries. So they do where heads share keys: a block of
// keys has more steps there, and waits for one step of the block of keys before it; a long block of
// keys that begins last would hold up the end of the kernel.
template <class Config, class Args>
KERNELMINT_HOST_DEVICE inline bool goes_from_diagonal(const Problem<Args>& problem) {
  return Config::causal && Config::deterministic && problem.group == 1;
}

// The tile of a thread block. Heads are handed out in sections. Blocks of keys of one head add to
// the same dQ: one waits for none whose thread block starts later.
template <class Config, class Args>
__device__ __forceinline__ Tile tile_of(const Problem<Args>& problem, int index) {
  const int heads = static_cast<int>(problem.args.B * problem.args.Hk);
  const int section_tiles = problem.key_blocks * problem.section_heads;
  const int section = min(index / section_tiles, problem.last_section);
  const int at = index - section * section_tiles;
  const int first_head = section * problem.section_heads;
  const int section_heads =
      section == problem.last_section ? heads - first_head : problem.section_heads;
  const int head = first_head + at % section_heads, key_block = at / section_heads;
  const int kv_heads = static_cast<int>(problem.args.Hk);
  const bool from_diagonal = goes_from_diagonal<Config>(problem) &&
                             !(problem.last_goes_back && section == problem.last_section);
  Tile tile{.key_block = from_diagonal ? problem.key_blocks - 1 - key_block : key_block,
            .kv_head = head % kv_heads,
            .batch = head / kv_heads,
            .from_diagonal = from_diagonal || kThereAndBack<Config> && at / problem.lot % 2 == 1};
  tile.first_block = first_query_block<Config>(problem, tile.key_block * Config::B_c);
  tile.blocks = problem.query_blocks - tile.first_block;
  return tile;
}

// The n-th block of queries of a tile. All heads of the group have it before the next one's turn.
template <class Config, class Args>
__device__ __forceinline__ int nth_block(const Problem<Args>& problem, const Tile& tile, int n) {
  return tile.from_diagonal ? tile.first_block + n : problem.query_blocks - 1 - n;
}

// The number of blocks of keys that add to a block of queries before a tile's, if dQ has to be the
// same each time.
template <class Config, class Args>
__device__ __forceinline__ int blocks_before(const Problem<Args>& problem, const Tile& tile,
                                             int block) {
  if (!goes_from_diagonal<Config>(problem) || !tile.from_diagonal) return tile.key_block;
  const int last_key = (block + 1) * Config::B_r - 1 + problem.offset;
  return min(last_key / Config::B_c, problem.key_blocks - 1) - tile.key_block;
}

}  // namespace kernelmint::flash_backward
