// The scheduler: which keys of which heads a thread block takes. Its work list goes batch entry by
// batch entry, key head by key head, block of rows by block of rows, through the steps of B_c keys
// that these see. The list is cut, on the device, from the lengths that lie there, into as many
// even shares as there are thread blocks that are worth it; so whatever the lengths are, all end at
// about the same time.
#pragma once

#include <cstdint>

#include "dtypes.h"
#include "integers.h"

namespace kernelmint::flash_decode::sm80 {

inline constexpr int kBlockRows = 16;      // of an mma: queries of heads that share keys
inline constexpr int kFarthest = 1 << 30;  // a window without an end; positions are below
inline constexpr int kMostThreadBlocks = 1024;
inline constexpr int kMostUnits = 32;  // of a head, if results do not depend on the batch
inline constexpr unsigned kMostListed = 1 << 22;  // units in all: times a share, they are 32 bits

// The arguments, and what the host makes of them.
template <class Args>
struct Problem {
  Args args;
  int group;                       // query heads that share a key head
  std::uint64_t group_reciprocal;  // 2^32 / group, rounded up
  int rows;                       // queries times group: row r is query r / group of head r % group
  int row_blocks;                 // of kBlockRows
  int heads;                      // key heads times row blocks
  int unit;                       // steps that stay together, if there are many; else 1
  int few_shares, many_shares;    // how many there may be; of whole heads if that costs little
  int window_left, window_right;  // kFarthest: without an end
  float scale, softcap;           // of scores as exponents of 2; capped, of twice tanh's argument
  // What thread blocks leave of heads that they share: [parts][least of rows and
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

// What is to be seen of a cache.
struct Keys {
  int length;  // keys that there are, padding included
  int first;   // that some query sees; all from there on are seen by some
  int steps;   // one at least, so that what sees nothing is written, too
  int unit;    // steps that stay together

  // Whole units before a step, and in all; a division that is rarely needed.
  __device__ unsigned units_before(int step) const { return unit == 1 ? step : step / unit; }
  __device__ unsigned units() const { return units_before(steps + unit - 1); }
};

template <class Config>
__device__ Keys keys_of(const Problem<typename Config::Args>& problem, int batch) {
  constexpr int kLeastUnit = ceil_div(512, Config::B_c);
  const auto& args = problem.args;
  const int capacity = static_cast<int>(Config::paged ? args.pages * args.P : args.P);
  Keys keys;
  keys.length = capacity;
  if (args.seqused_k.data != nullptr)
    keys.length = min(max(*args.seqused_k.template at<const i32>(batch), 0), capacity);
  int padding = 0;
  if (args.leftpad_k.data != nullptr)
    padding = min(max(*args.leftpad_k.template at<const i32>(batch), 0), keys.length);
  keys.first = max(padding, keys.length - static_cast<int>(args.Sq) - problem.window_left);
  keys.steps = max(ceil_div<Config::B_c>(keys.length - keys.first), 1);
  // By its own length alone: so that no other batch entry changes where a sum begins.
  keys.unit =
      args.batch_invariant ? max(kLeastUnit, ceil_div<kMostUnits>(keys.steps)) : problem.unit;
  return keys;
}

// A step of the list, and how much of the thread block's share is left from it on.
struct Cursor {
  int batch, kv_head, row_block;
  Keys keys;
  int step, unit_end;  // both within the head
  int units_left;
};

// Whether all caches hold the same number of keys.
template <class Args>
__device__ bool are_alike(const Problem<Args>& problem) {
  return problem.args.seqused_k.data == nullptr && problem.args.leftpad_k.data == nullptr;
}

// `at` is at the end of a unit, and has `units` behind it.
template <class Config>
__device__ __forceinline__ void next_unit(const Problem<typename Config::Args>& problem, Cursor& at,
                                          int units) {
  at.units_left -= units;
  if (at.units_left > 0 && at.step == at.keys.steps) {
    at.step = 0;
    if (++at.row_block == problem.row_blocks) {
      at.row_block = 0;
      if (++at.kv_head == problem.args.Hk) {
        at.kv_head = 0;
        ++at.batch;
        if (!are_alike(problem)) at.keys = keys_of<Config>(problem, at.batch);
      }
    }
  }
  at.unit_end = min(at.step + at.keys.unit, at.keys.steps);
}

// The next step.
template <class Config>
__device__ __forceinline__ void advance(const Problem<typename Config::Args>& problem, Cursor& at) {
  if (++at.step == at.unit_end) next_unit<Config>(problem, at, 1);
}

// The end of what lies together at `at`: of the unit, or the head, or the share.
template <class Args>
__device__ int end_of(const Problem<Args>& problem, const Cursor& at) {
  if (problem.args.batch_invariant) return at.unit_end;
  return at.units_left <= (at.keys.steps - at.step) / at.keys.unit
             ? at.step + at.units_left * at.keys.unit
             : at.keys.steps;
}

// What comes behind it.
template <class Config>
__device__ void advance_to(const Problem<typename Config::Args>& problem, Cursor& at, int end) {
  const int units = static_cast<int>(at.keys.units_before(end - at.step + at.keys.unit - 1));
  at.step = end;
  next_unit<Config>(problem, at, units);
}

template <class Config>
class Scheduler {
  using Problem = sm80::Problem<typename Config::Args>;

 public:
  // By whole warps.
  __device__ explicit Scheduler(const Problem& problem) : problem_(problem) {
    for (int first = 0; first < problem.args.B; first += 32)
      units_ += __shfl_sync(~0u, look(first).until, 31);
    // A share has kLeastKeys keys; or fewer, if some multiprocessors would have none.
    constexpr unsigned kLeastSteps = ceil_div(512, Config::B_c);
    const unsigned many = problem.many_shares, few = problem.few_shares;
    shares_ = min(units_ >= many * kLeastSteps ? many : few, units_);
  }

  __device__ unsigned shares() const { return shares_; }

  // The first unit of a share.
  __device__ unsigned begin(unsigned share) const { return share * units_ / shares_; }
  // The share that a unit belongs to.
  __device__ unsigned share_of(unsigned unit) const { return ((unit + 1) * shares_ - 1) / units_; }

  // The first step of a share. By whole warps.
  __device__ Cursor first_of(unsigned share) const {
    unsigned unit = begin(share);
    Cursor at;
    at.units_left = static_cast<int>(begin(share + 1) - unit);
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
    unit -= __shfl_sync(~0u, entry.until - entry.units, found);
    at.batch = first + found;
    at.keys = {__shfl_sync(~0u, entry.keys.length, found),
               __shfl_sync(~0u, entry.keys.first, found), __shfl_sync(~0u, entry.keys.steps, found),
               __shfl_sync(~0u, entry.keys.unit, found)};
    const unsigned units = at.keys.units(), head = unit / units;
    at.kv_head = static_cast<int>(head);
    at.row_block = 0;
    if (problem_.row_blocks > 1) {
      at.kv_head = static_cast<int>(head) / problem_.row_blocks;
      at.row_block = static_cast<int>(head) % problem_.row_blocks;
    }
    at.step = static_cast<int>(unit - head * units) * at.keys.unit;
    at.unit_end = min(at.step + at.keys.unit, at.keys.steps);
    return at;
  }

 private:
  // A batch entry, by the lane that looks at it.
  struct Entry {
    Keys keys;
    unsigned units, until;  // its own, and with those of the lanes before
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

  const Problem& problem_;
  unsigned units_ = 0, shares_;
};

}  // namespace kernelmint::flash_decode::sm80
