// The tiles of the queries of all sequences: which rows they have, and which keys these see.
// Lengths are read here, on the device.
#pragma once

#include <cstdint>

#include "integers.h"
#include "tensor_view.h"

namespace kernelmint::flash_prefill {

// The tile of queries that a thread block has. Lengths out of bounds count as the nearest.
template <class Config>
struct Tile {
  static constexpr int kFarthest = 1 << 30;  // no position is beyond

  int sequence;
  int index, tiles;                      // the sequence's number, and the number of its tiles
  int entry, first_row;                  // q's batch entry, and the sequence's first row in it
  int first_query;                       // the tile's first query, counted in the sequence
  int rows, queries;                     // the sequence's rows; rows after its queries become 0
  int key_entry, first_key, begin, end;  // within k: keys [begin, end) from `first_key` on
  int window_left, window_right;

  // The lane-th sequence of most keys, if at most 32 are packed, else the lane-th: tiles of many
  // keys take longest, and should not keep all others waiting at the end. A whole warp calls this.
  __device__ static int longest_first(const typename Config::Args& args) {
    const int lane = threadIdx.x % 32, sequences = static_cast<int>(args.Cq) - 1;
    if (args.cu_seqlens_q.data == nullptr || sequences > 32) return lane;
    Tile own;
    own.end = -1;
    if (lane < sequences) own.find_keys(args, lane);
    int place = 0, sequence = 0;
#pragma unroll 4
    for (int other = 0; other < 32; ++other) {
      const int keys = __shfl_sync(~0u, own.end, other);
      place += keys > own.end || (keys == own.end && other < lane);
    }
#pragma unroll 4
    for (int other = 0; other < 32; ++other)
      if (__shfl_sync(~0u, place, other) == lane) sequence = other;
    return sequence;
  }

  // The `place`-th tile, if it exists; each tile counts for `heads`, and so does `index` then. A
  // whole warp calls this, whose lanes look at 32 sequences at a time; of the first 32, at
  // `own_of_first`. `first_query` is left to the caller.
  template <bool kMayBeNone = false>
  __device__ bool find(const typename Config::Args& args, int place, int heads = 1,
                       int own_of_first = threadIdx.x % 32) {
    const auto reach = [](int keys) { return keys < 0 ? kFarthest : min(keys, kFarthest); };
    window_left = reach(args.window_left);
    window_right = reach(args.window_right);
    const int all_rows = static_cast<int>(args.Tq);
    const bool packed = args.cu_seqlens_q.data != nullptr;
    index = place;
    tiles = ceil_div<Config::B_r>(all_rows);
    if (packed) {
      const int lane = threadIdx.x % 32, parts = static_cast<int>(args.Cq);
      for (int first = 0;; first += 32) {
        if (first >= parts) return false;
        const int own = first + own_of_first;
        const int count = own < parts ? ceil_div<Config::B_r>(find_rows(args, own)) : 0;
        int behind = count * heads;
        for (int distance = 1; distance < 32; distance *= 2) {
          const int before = __shfl_up_sync(~0u, behind, distance);
          if (lane >= distance) behind += before;
        }
        const unsigned found = __ballot_sync(~0u, index < behind);
        if (found != 0) {
          const int of = __ffs(found) - 1;
          sequence = __shfl_sync(~0u, own, of);
          index -= __shfl_sync(~0u, behind - count * heads, of);
          tiles = __shfl_sync(~0u, count, of);
          break;
        }
        index -= __shfl_sync(~0u, behind, 31);
      }
      rows = find_rows(args, sequence);
      entry = 0;
      queries = 0;
      if (sequence + 1 < parts)
        queries = within(number(args.cu_seqlens_q, sequence + 1), first_row, all_rows) - first_row;
      else
        --sequence;
    } else {
      sequence = entry = index / (tiles * heads);
      if (kMayBeNone && sequence >= args.Nq) return false;
      index %= tiles * heads;
      first_row = 0;
      rows = queries = all_rows;
    }
    // Under a causal mask the last ones see most keys: they begin first.
    first_query = (tiles - 1 - index / heads) * Config::B_r;
    if (args.seqused_q.data != nullptr)
      queries = within(number(args.seqused_q, sequence), 0, queries);
    find_keys(args, sequence);
    return true;
  }

  // The key that a query is at, and the keys that it sees: from first_seen to before seen_behind.
  __device__ __forceinline__ int own_key(int query) const { return query + end - queries; }
  __device__ __forceinline__ int first_seen(int query) const {
    return max(own_key(query) - window_left, begin);
  }
  __device__ __forceinline__ int seen_behind(int query) const {
    return min(own_key(query) + window_right + 1, end);
  }

 private:
  // The keys of a sequence.
  __device__ void find_keys(const typename Config::Args& args, int of) {
    key_entry = of;
    first_key = begin = 0;
    end = static_cast<int>(args.Tk);
    if (args.cu_seqlens_k.data != nullptr) {
      key_entry = 0;
      first_key = within(number(args.cu_seqlens_k, of), 0, end);
      end = within(number(args.cu_seqlens_k, of + 1), first_key, end) - first_key;
    } else if (args.block_table.data != nullptr) {
      end *= static_cast<int>(args.pages);
    }
    if (args.seqused_k.data != nullptr) end = within(number(args.seqused_k, of), 0, end);
    if (args.leftpad_k.data != nullptr) begin = within(number(args.leftpad_k, of), 0, end);
  }

  // The number of rows of a packed sequence; the last sequence has the rows after it. After the
  // last come the rows before the first: a part without a query.
  __device__ int find_rows(const typename Config::Args& args, int of) {
    const int all_rows = static_cast<int>(args.Tq);
    const bool is_before = of + 1 == args.Cq;
    first_row = is_before ? 0 : within(number(args.cu_seqlens_q, of), 0, all_rows);
    if (of + 2 == args.Cq) return all_rows - first_row;
    const int end = number(args.cu_seqlens_q, is_before ? 0 : of + 1);
    return within(end, first_row, all_rows) - first_row;
  }
  __device__ static int number(const ConstTensorView<1>& of, int i) { return *of.at<const i32>(i); }
  __device__ static int within(int value, int low, int high) { return max(low, min(value, high)); }
};

}  // namespace kernelmint::flash_prefill
