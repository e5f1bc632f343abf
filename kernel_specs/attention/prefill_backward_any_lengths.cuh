// Sequences of any lengths, with windows: which blocks of queries a block of keys meets, and where
// both lie.
#pragma once

#include <cstdint>

#include "attention/dropout.h"
#include "attention/prefill_backward_problem.h"
#include "integers.h"

namespace kernelmint::flash_prefill_backward {

// A block of keys, and the blocks of queries that see it. Rows of both are counted from where their
// sequence's region begins, and blocks of queries from its first block.
struct alignas(16) Tile {
  int sequence, kv_head;
  int query_row_, first_query, end_query;
  int key_row_, key_rows, first_key, end_key;
  int key_block;
  int first_block, blocks;
  int first_index;  // the sequence's first block of queries, among all of a head
  int own;          // the key of the region's first row, which other rows' keys follow
  bool from_first;  // it goes through its queries from the first one on
  bool packed_queries, packed_keys;  // they lie in the tensors' only entry
};

// The part that the targets' views of a call have in common.
template <class Config, class Problem>
struct AnyLengths {
  static constexpr int kFarthest = 1 << 30;  // no position is beyond

  __device__ __forceinline__ static int reach(int keys) {
    return keys < 0 ? kFarthest : min(keys, kFarthest);
  }

  // True if queries of a block of a sequence see a key.
  __device__ static bool sees_keys(const Problem& problem, const Region& queries,
                                   const Region& keys, int block) {
    const int own = keys.end - queries.end;
    const int first = max(block * Config::B_r, queries.begin);
    const int last = min((block + 1) * Config::B_r, queries.end) - 1;
    return first <= last && max(keys.begin, first + own - reach(problem.args.window_left)) <=
                                min(keys.end - 1, last + own + reach(problem.args.window_right));
  }

  // The tiles in the order in which thread blocks take them.
  template <class AnyTile = Tile>
  __device__ __forceinline__ static AnyTile tile_of(const Problem& problem, int index) {
    const int heads = static_cast<int>(problem.args.Hk);
    const int section = index / (problem.key_blocks * problem.section_heads);
    const int at = index - section * (problem.key_blocks * problem.section_heads);
    const int section_heads = min(problem.section_heads, heads - section * problem.section_heads);
    const int place = at / section_heads;
    const int key_block = problem.from_first ? problem.key_blocks - 1 - place : place;
    const int sequence = sequence_of<Config::B_c>(
        problem.args.cu_seqlens_k, static_cast<int>(problem.args.Tk), problem.sequences, key_block);
    const Region keys = keys_of<Config>(problem.args, problem.sequences, sequence);
    return tile_at<AnyTile>(problem, sequence, keys,
                            section * problem.section_heads + at % section_heads,
                            key_block - keys.first_block, problem.from_first);
  }

  // The tile of a sequence's block of keys.
  template <class AnyTile = Tile>
  __device__ __forceinline__ static AnyTile tile_at(const Problem& problem, int sequence,
                                                    const Region& keys, int kv_head, int key_block,
                                                    bool from_first) {
    const auto& args = problem.args;
    const Region queries = queries_of<Config>(args, problem.sequences, sequence);
    AnyTile tile{.sequence = sequence,
                 .kv_head = kv_head,
                 .query_row_ = queries.first_row,
                 .first_query = queries.begin,
                 .end_query = queries.end,
                 .key_row_ = keys.first_row,
                 .key_rows = keys.rows,
                 .first_key = keys.begin,
                 .end_key = keys.end,
                 .key_block = key_block,
                 .first_index = queries.first_block,
                 .own = keys.end - queries.end};
    if constexpr (requires { tile.from_first; }) {
      tile.from_first = from_first;
      tile.packed_queries = args.cu_seqlens_q.data != nullptr;
      tile.packed_keys = args.cu_seqlens_k.data != nullptr;
    } else {
      tile.query_entry = queries.entry, tile.key_entry = keys.entry;
    }
    // The queries that see the first key at the latest, and the last key at the earliest.
    const int first_key = max(keys.begin, tile.key_block * Config::B_c);
    const int last_key = min(keys.end, (tile.key_block + 1) * Config::B_c) - 1;
    const int first = max(queries.begin, first_key - tile.own - reach(args.window_right));
    const int last = min(queries.end - 1, last_key - tile.own + reach(args.window_left));
    if (first_key <= last_key && first <= last) {
      tile.first_block = first / Config::B_r;
      tile.blocks = last / Config::B_r + 1 - tile.first_block;
    }
    return tile;
  }

  // dK and dV of keys before the first sequence, by the thread block of its first keys.
  template <class AnyTile>
  __device__ static void clear_keys_before(const Problem& problem, const AnyTile& tile, int thread,
                                           int threads) {
    using Element = typename Config::dtype;
    const auto& args = problem.args;
    if (args.cu_seqlens_k.data == nullptr || tile.sequence != 0 || tile.key_block != 0) return;
    clear_rows_before<Element>(args.dk, tile.key_row_, tile.kv_head, args.D, thread, threads);
    clear_rows_before<Element>(args.dv, tile.key_row_, tile.kv_head, args.Dv, thread, threads);
  }

  // The thread block whose tile has a block of keys, counted among those of all sequences.
  __device__ __forceinline__ static int thread_block_of(const Problem& problem, int kv_head,
                                                        int key_block) {
    const int heads = static_cast<int>(problem.args.Hk);
    const int first = kv_head - kv_head % problem.section_heads;
    const int place = problem.from_first ? problem.key_blocks - 1 - key_block : key_block;
    return first * problem.key_blocks + place * min(problem.section_heads, heads - first) +
           kv_head - first;
  }

  __device__ __forceinline__ static float scale(const Problem& problem) {
    return problem.args.softmax_scale * attention::keep_scale_of(problem.args);
  }
  __device__ __forceinline__ static int columns(const Problem& problem) {
    return static_cast<int>(problem.args.D);
  }
  __device__ __forceinline__ static int value_columns(const Problem& problem) {
    return static_cast<int>(problem.args.Dv);
  }

  __device__ __forceinline__ static int query_entry(const Tile& tile) {
    return tile.packed_queries ? 0 : tile.sequence;
  }
  __device__ __forceinline__ static int key_entry(const Tile& tile) {
    return tile.packed_keys ? 0 : tile.sequence;
  }

  __device__ __forceinline__ static int nth_block(const Problem&, const Tile& tile, int n) {
    return tile.first_block + (tile.from_first ? n : tile.blocks - 1 - n);
  }
  template <class AnyTile>
  __device__ __forceinline__ static int block_index(const Problem& problem, const AnyTile& tile,
                                                    int head, int block) {
    return head * problem.query_blocks + tile.first_index + block;
  }
  // Steps go through all blocks of a head before those of the next one, whose Q, dO and dQ would
  // not stay in L2 together. But if tiles have different numbers of blocks, and dQ waits for turns,
  // or sequences are short, all heads have a block first: a head's short tiles would wait for its
  // long ones, or be at other heads at the same time.
  __device__ __forceinline__ static bool heads_first(const Problem& problem) {
    return problem.heads_first;
  }

  template <class AnyTile>
  __device__ __forceinline__ static int blocks_before(const Problem& problem, const AnyTile& tile,
                                                      int block) {
    const int first = max(block * Config::B_r, tile.first_query);
    const int last = min((block + 1) * Config::B_r, tile.end_query) - 1;
    if (!problem.from_first)
      return tile.key_block -
             max(tile.first_key, first + tile.own - reach(problem.args.window_left)) / Config::B_c;
    return min(tile.end_key - 1, last + tile.own + reach(problem.args.window_right)) / Config::B_c -
           tile.key_block;
  }
};

}  // namespace kernelmint::flash_prefill_backward
