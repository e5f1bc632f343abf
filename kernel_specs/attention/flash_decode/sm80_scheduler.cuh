// The scheduler, which gives thread blocks keys of heads. Its work list goes batch entry by batch
// entry, key head by key head, block of rows by block of rows, through the steps of B_c keys that
// these see. The list is cut, on the device, from the lengths that lie there, into even shares, one
// for each thread block that is worth it: all end at about the same time, whatever the lengths are.
#pragma once

#include <cstdint>

#include "attributes.h"
#include "cuda_launch.cuh"
#include "dtypes.h"
#include "integers.h"

namespace kernelmint::flash_decode::sm80 {

inline constexpr int kBlockRows = 16;      // rows of an mma: queries of heads that share keys
inline constexpr int kFarthest = 1 << 30;  // a window without an end; positions are below
inline constexpr int kMostThreadBlocks = 1024;
inline constexpr int kMostClusterBits = 3;       // every device with clusters takes 8 thread blocks
inline constexpr int kMostUnits = 32;            // a head's, if results do not depend on the batch
inline constexpr unsigned kMostAlike = 1 << 20;  // units that the host makes the list of
inline constexpr unsigned kMostListed = 1 << 22;  // units in all: times a share, they are 32 bits

// The keys of a cache that some query sees.
struct Keys {
  int length;  // keys that there are, padding included
  int first;   // the first key that some query sees; some query sees each key from there on
  int steps;   // one at least, so that rows that see nothing are written
  int unit;    // steps that stay together

  // Whole units before a step, and in all; a division that is rarely needed.
  KERNELMINT_HOST_DEVICE unsigned units_before(int step) const {
    return unit == 1 ? step : step / unit;
  }
  KERNELMINT_HOST_DEVICE unsigned units() const { return units_before(steps + unit - 1); }
};

// floor(n / divisor) of n < kMostAlike, by a divisor below 2^22 that the host knows.
constexpr std::uint64_t reciprocal_of(std::uint64_t divisor) {
  return ((std::uint64_t{1} << 42) + divisor - 1) / divisor;
}
__device__ __forceinline__ unsigned quotient(unsigned n, std::uint64_t reciprocal) {
  const std::uint64_t low = std::uint64_t{n} * static_cast<std::uint32_t>(reciprocal);
  return (n * static_cast<std::uint32_t>(reciprocal >> 32) +
          static_cast<std::uint32_t>(low >> 32)) >>
         10;
}

// The list as the host makes it, if all caches hold the same number of keys: below kMostAlike.
struct Alike {
  Keys keys;
  unsigned shares, units;
  unsigned units_of_share, units_left;  // units / shares, and the rest
  unsigned units_of_head;
  // If shares are whole heads, more than two each, they are dealt out like cards: neighbours read
  // heads that lie together at the same time. Otherwise a share's heads follow each other.
  bool is_dealt;
  int batches_on, heads_on;                             // from a head of a share to its next
  std::uint64_t by_shares, by_units_of_head, by_heads;  // reciprocals
};

// The way in which clusters take heads, if they do: the host computes it, since all that a block
// does before it requests its first keys delays the rest.
struct InClusters {
  int bits;                // 2^bits blocks of a cluster
  int share;               // groups of four columns, of all rows, that a block combines
  std::uint64_t by_share;  // 2^32 / share, rounded up
};

// The arguments, and the values that the host makes of them. The values that each thread block
// begins with lie together.
template <class Args>
struct Problem {
  Alike alike;
  InClusters clusters;
  int key_width, value_width;  // D and Dv
  int row_blocks;              // blocks of kBlockRows rows
  int kv_heads, heads;         // key heads; times row blocks
  int rows;                    // queries times group: row r is query r / group of head r % group
  int group;                   // query heads that share a key head
  bool evicts_first;           // true if the lines of caches leave L2 before all others
  std::uint64_t group_reciprocal;  // 2^32 / group, rounded up
  Args args;
  int unit;                       // steps that stay together, if there are many; else 1
  int few_shares, many_shares;    // how many there may be; of whole heads if that costs little
  int window_left, window_right;  // kFarthest: without an end
  float scale, softcap;           // factors of scores as exponents of 2
  // The results that thread blocks leave of heads that they share: [parts][least of rows and
  // kBlockRows][d_head], not divided by the sum, and for each of these rows its maximum and its
  // sum.
  float* outputs;
  float2* statistics;
  int* tickets;  // parts of a shared head that are done; zero before and after

  __device__ int query_of(int row) const {
    return static_cast<int>(static_cast<unsigned>(row) * group_reciprocal >> 32);
  }
  __device__ int head_of(int kv_head, int row) const {
    return kv_head * group + row - query_of(row) * group;
  }
};

// The keys of a cache of `length` keys, without the first `padding`.
template <class Config>
KERNELMINT_HOST_DEVICE Keys keys_of(const Problem<typename Config::Args>& problem, int length,
                                    int padding) {
  constexpr int kLeastUnit = ceil_div(512, Config::B_c);
  const auto& args = problem.args;
  const int seen = length - static_cast<int>(args.Sq) - problem.window_left;
  Keys keys;
  keys.length = length;
  keys.first = padding > seen ? padding : seen;
  const int steps = ceil_div<Config::B_c>(length - keys.first);
  keys.steps = steps > 1 ? steps : 1;
  // The unit follows from the cache's own length: no other batch entry changes where a sum begins.
  const int unit = ceil_div<kMostUnits>(keys.steps);
  keys.unit = !args.batch_invariant ? problem.unit : unit > kLeastUnit ? unit : kLeastUnit;
  return keys;
}

template <class Config>
__device__ Keys keys_of(const Problem<typename Config::Args>& problem, int batch) {
  const auto& args = problem.args;
  const int capacity = static_cast<int>(Config::paged ? args.pages * args.P : args.P);
  int length = capacity, padding = 0;
  if (args.seqused_k.data != nullptr)
    length = min(max(*args.seqused_k.template at<const i32>(batch), 0), capacity);
  if (args.leftpad_k.data != nullptr)
    padding = min(max(*args.leftpad_k.template at<const i32>(batch), 0), length);
  return keys_of<Config>(problem, length, padding);
}

// A step of the list, and how much of the thread block's share is left from it on.
struct Cursor {
  int batch, kv_head, row_block;
  Keys keys;
  int step, unit_end;  // both within the head
  int units_left;
  int heads;    // the heads before this one in the block, modulo `stages`
  bool is_new;  // it is the first step of a head or of the share, and not requested yet
};

// `at` is at the end of a unit, and has passed `units`.
template <class Config, bool kAlike>
__device__ __forceinline__ void next_unit(const Problem<typename Config::Args>& problem, Cursor& at,
                                          int units) {
  at.units_left -= units;
  if (at.units_left > 0 && at.step == at.keys.steps) {
    at.step = 0;
    at.is_new = true;
    if (++at.heads == Config::stages) at.heads = 0;
    if (++at.row_block == problem.row_blocks) {
      at.row_block = 0;
      if constexpr (kAlike) {
        at.batch += problem.alike.batches_on;
        at.kv_head += problem.alike.heads_on;
      } else {
        ++at.kv_head;
      }
      if (at.kv_head >= problem.kv_heads) {
        at.kv_head -= problem.kv_heads;
        ++at.batch;
        if constexpr (!kAlike) at.keys = keys_of<Config>(problem, at.batch);
      }
    }
  }
  at.unit_end = min(at.step + at.keys.unit, at.keys.steps);
}

// The first step of this block in a launch in clusters: the block has an even share of its head's
// steps.
template <class Config>
__device__ __forceinline__ Cursor first_in_cluster(const Problem<typename Config::Args>& problem) {
  const int bits = problem.clusters.bits, rank = static_cast<int>(blockIdx.x) & ((1 << bits) - 1);
  const unsigned head = blockIdx.x >> bits, batch = quotient(head, problem.alike.by_heads);
  Cursor at = {};
  at.batch = static_cast<int>(batch);
  at.kv_head = static_cast<int>(head - batch * problem.heads);
  if (problem.row_blocks > 1) {
    at.row_block = at.kv_head % problem.row_blocks;
    at.kv_head /= problem.row_blocks;
  }
  at.keys = problem.alike.keys;
  if (problem.args.seqused_k.data != nullptr || problem.args.leftpad_k.data != nullptr) {
    at.keys = keys_of<Config>(problem, at.batch);
  }
  at.step = rank * at.keys.steps >> bits;
  at.units_left = ((rank + 1) * at.keys.steps >> bits) - at.step;
  return at;
}

// The next step.
template <class Config, bool kAlike>
__device__ __forceinline__ void advance(const Problem<typename Config::Args>& problem, Cursor& at) {
  if (++at.step == at.unit_end) next_unit<Config, kAlike>(problem, at, 1);
}

// The end of the steps that lie together at `at`: of the unit, or the head, or the share.
template <class Args>
__device__ int end_of(const Problem<Args>& problem, const Cursor& at) {
  if (problem.args.batch_invariant) return at.unit_end;
  return at.units_left <= (at.keys.steps - at.step) / at.keys.unit
             ? at.step + at.units_left * at.keys.unit
             : at.keys.steps;
}

// Moves a cursor on to step `end`.
template <class Config, bool kAlike>
__device__ void advance_to(const Problem<typename Config::Args>& problem, Cursor& at, int end) {
  const int units = static_cast<int>(at.keys.units_before(end - at.step + at.keys.unit - 1));
  at.step = end;
  next_unit<Config, kAlike>(problem, at, units);
}

// How many shares a list of so many units has: a share has 512 keys; or fewer, if some
// multiprocessors would have none.
template <class Config>
KERNELMINT_HOST_DEVICE unsigned shares_for(const Problem<typename Config::Args>& problem,
                                           unsigned units) {
  constexpr unsigned kLeastSteps = ceil_div(512, Config::B_c);
  const unsigned many = problem.many_shares, few = problem.few_shares;
  const unsigned shares = units >= many * kLeastSteps ? many : few;
  return shares < units ? shares : units;
}

// Makes the list of `batch` caches that are all as full as can be. False if it is too long for
// that.
template <class Config>
bool make_list(Problem<typename Config::Args>& problem, std::int64_t batch) {
  Alike& alike = problem.alike;
  alike.keys = keys_of<Config>(problem, static_cast<int>(problem.args.P), 0);
  alike.units_of_head = alike.keys.units();
  const std::uint64_t units =
      static_cast<std::uint64_t>(batch) * problem.heads * alike.units_of_head;
  if (units >= kMostAlike) return false;
  alike.units = static_cast<unsigned>(units);
  alike.shares = shares_for<Config>(problem, alike.units);
  alike.units_of_share = alike.units / alike.shares;
  alike.units_left = alike.units % alike.shares;
  alike.is_dealt = problem.row_blocks == 1 && alike.units_left == 0 &&
                   alike.units_of_share % alike.units_of_head == 0 &&
                   alike.units_of_share > 2 * alike.units_of_head;
  const int heads_apart = alike.is_dealt ? static_cast<int>(alike.shares) : 1;
  alike.batches_on = heads_apart / problem.heads;
  alike.heads_on = heads_apart % problem.heads;
  alike.by_shares = reciprocal_of(alike.shares);
  alike.by_units_of_head = reciprocal_of(alike.units_of_head);
  alike.by_heads = reciprocal_of(static_cast<std::uint64_t>(problem.heads));
  return true;
}

// Makes `launch` a launch of clusters, each for a head of `batch` caches. Returns false if even
// shares of all work are as fast. It saves 2 us, in which parts are exchanged through device
// memory, and leaves multiprocessors without work: a block may have up to 8 keys for each block of
// the launch, or any number if there are nearly as many blocks as shares. (A cache may be filled
// less than it can be, which only the device knows.) `resident` gives the number of clusters of a
// launch that the device holds at once.
template <class Config, class Resident>
bool make_clusters(Problem<typename Config::Args>& problem, std::int64_t batch, bool is_alike,
                   CudaLaunch& launch, Resident resident) {
  const std::int64_t heads = batch * problem.heads;
  if (heads > INT16_MAX) return false;
  const Keys keys = keys_of<Config>(problem, static_cast<int>(problem.args.P), 0);
  for (int bits = kMostClusterBits; bits > 0; --bits) {
    const std::int64_t blocks = std::int64_t{1} << bits;
    launch.grid = {heads * blocks};
    launch.cluster = {blocks};
    if (blocks > keys.steps || resident(launch) < heads) continue;
    const bool is_small = ceil_div(keys.steps, blocks) * Config::B_c <= 8 * launch.grid.x;
    const bool is_wide = is_alike && 8 * launch.grid.x >= 7 * std::int64_t{problem.alike.shares};
    if (!is_small && !is_wide) return false;
    problem.alike.keys = keys;
    problem.alike.by_heads = reciprocal_of(static_cast<std::uint64_t>(problem.heads));
    const int rows = problem.rows < kBlockRows ? problem.rows : kBlockRows;
    problem.clusters = {.bits = bits,
                        .share = static_cast<int>(ceil_div(rows * Config::d_head / 4, blocks)),
                        .by_share = 0};
    problem.clusters.by_share =
        ceil_div(std::uint64_t{1} << 32, static_cast<std::uint64_t>(problem.clusters.share));
    return true;
  }
  return false;
}

template <class Config, bool kAlike>
class Scheduler {
  using Problem = sm80::Problem<typename Config::Args>;

 public:
  // By whole warps.
  __device__ __forceinline__ explicit Scheduler(const Problem& problem)
      : problem_(problem), units_(problem.alike.units), shares_(problem.alike.shares) {
    if constexpr (!kAlike) {
      units_ = 0;
      for (int first = 0; first < problem.args.B; first += 32)
        units_ += __shfl_sync(~0u, look(first).until, 31);
      shares_ = shares_for<Config>(problem, units_);
    }
  }

  __device__ unsigned shares() const { return shares_; }

  // The first unit of a share.
  __device__ __forceinline__ unsigned begin(unsigned share) const {
    const Alike& alike = problem_.alike;
    if constexpr (kAlike)
      return share * alike.units_of_share + quotient(share * alike.units_left, alike.by_shares);
    return share * units_ / shares_;
  }
  // The first unit of the head at `at`, which has passed `unit` units of the head.
  __device__ unsigned head_begin(const Cursor& at, unsigned unit) const {
    if constexpr (kAlike)
      return (at.batch * problem_.heads + at.kv_head * problem_.row_blocks + at.row_block) *
             problem_.alike.units_of_head;
    return begin(blockIdx.x + 1) - at.units_left - unit;
  }
  // The share that a unit belongs to.
  __device__ unsigned share_of(unsigned unit) const { return ((unit + 1) * shares_ - 1) / units_; }

  // The first step of a share. By whole warps.
  __device__ __forceinline__ Cursor first_of(unsigned share) const {
    const unsigned unit = begin(share);
    Cursor at;
    unsigned head = 0, unit_of_head = 0;  // within the batch entry; within the head
    if constexpr (kAlike) {
      const Alike& alike = problem_.alike;
      const unsigned heads = alike.is_dealt ? share : quotient(unit, alike.by_units_of_head);
      at.batch = static_cast<int>(quotient(heads, alike.by_heads));
      at.keys = alike.keys;
      head = heads - at.batch * problem_.heads;
      unit_of_head = alike.is_dealt ? 0 : unit - heads * alike.units_of_head;
    } else {
      unit_of_head = find(unit, at);
      head = unit_of_head / at.keys.units();
      unit_of_head -= head * at.keys.units();
    }
    at.kv_head = static_cast<int>(head);
    at.row_block = 0;
    if (problem_.row_blocks > 1) {
      at.kv_head = static_cast<int>(head) / problem_.row_blocks;
      at.row_block = static_cast<int>(head) % problem_.row_blocks;
    }
    at.step = static_cast<int>(unit_of_head) * at.keys.unit;
    at.unit_end = min(at.step + at.keys.unit, at.keys.steps);
    at.units_left = static_cast<int>(begin(share + 1) - unit);
    at.heads = 0;
    at.is_new = true;
    return at;
  }

 private:
  // A batch entry, by the lane that looks at it.
  struct Entry {
    Keys keys;
    unsigned units, until;  // the lane's units, and their sum with the units of the lanes before
  };

  // Lane l looks at batch entry `first` + l, which need not exist.
  __device__ Entry look(int first) const {
    const int lane = threadIdx.x % 32, batch = first + lane;
    Entry entry{};
    if (batch < problem_.args.B) {
      entry.keys = keys_of<Config>(problem_, batch);
      entry.units = entry.keys.units() * problem_.heads;
    }
    entry.until = entry.units;
    if (problem_.args.B > 1) {
#pragma unroll
      for (int lanes = 1; lanes < 32; lanes *= 2) {
        const unsigned before = __shfl_up_sync(~0u, entry.until, lanes);
        if (lane >= lanes) entry.until += before;
      }
    } else {
      entry.until = __shfl_sync(~0u, entry.units, 0);
    }
    return entry;
  }

  // Finds the batch entry that a unit of the list belongs to, and returns which unit of it that is.
  __device__ unsigned find(unsigned unit, Cursor& at) const {
    Entry entry{};
    unsigned later = 0;
    int first = 0;
    for (;; first += 32) {
      entry = look(first);
      later = __ballot_sync(~0u, entry.until > unit);
      if (later != 0) break;
      unit -= __shfl_sync(~0u, entry.until, 31);
    }
    const int found = __ffs(static_cast<int>(later)) - 1;
    at.batch = first + found;
    at.keys = {__shfl_sync(~0u, entry.keys.length, found),
               __shfl_sync(~0u, entry.keys.first, found), __shfl_sync(~0u, entry.keys.steps, found),
               __shfl_sync(~0u, entry.keys.unit, found)};
    return unit - __shfl_sync(~0u, entry.until - entry.units, found);
  }

  const Problem& problem_;
  unsigned units_, shares_;
};

}  // namespace kernelmint::flash_decode::sm80
