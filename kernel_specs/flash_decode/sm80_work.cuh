// Which keys of which heads a thread block takes. What there is to do is a list: batch entry by
// batch entry, key head by key head, block of rows by block of rows, the steps of B_c keys that it
// sees. The list is cut, on the device, from the lengths that lie there, into as many even shares
// as there are thread blocks that are worth it; so whatever the lengths are, all end at about the
// same time.
#pragma once

#include <cstdint>

#include "dtypes.h"
#include "integers.h"

namespace kernelmint::flash_decode::sm80 {

inline constexpr int kBlockRows = 16;      // of an mma: queries of heads that share keys
inline constexpr int kFarthest = 1 << 30;  // a window without an end; positions are below
inline constexpr int kMostThreadBlocks = 1024;
inline constexpr int kMostUnits = 32;  // of a head, where results do not depend on the batch

// The arguments, and what the host makes of the extents.
template <class Args>
struct Problem {
  Args args;
  int group;                      // query heads that share a key head
  int rows;                       // queries times group: row r is query r / group of head r % group
  int row_blocks;                 // of kBlockRows
  int window_left, window_right;  // kFarthest: without an end
  int multiprocessors;
  // What thread blocks leave of heads that they share: [parts][least of rows and
  // kBlockRows][d_head], not divided by the sum, and for each of these rows its maximum and its
  // sum.
  float* outputs;
  float2* statistics;
  int* tickets;  // parts of a shared head that are done; zero before and after
};

// What is to be seen of a cache.
struct Keys {
  int length;  // keys that there are, padding included
  int first;   // that some query sees; all from there on are seen by some
  int steps;   // one at least, so that what sees nothing is written, too
  int unit;    // steps that stay together

  __device__ int units() const { return ceil_div(steps, unit); }
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
  keys.unit = args.batch_invariant ? max(kLeastUnit, ceil_div<kMostUnits>(keys.steps)) : 1;
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

// Where what lies together at `at` ends: the rest of the unit, or of the head.
template <class Args>
__device__ int end_of(const Problem<Args>& problem, const Cursor& at) {
  return problem.args.batch_invariant ? at.unit_end : min(at.step + at.units_left, at.keys.steps);
}

// What comes behind it.
template <class Config>
__device__ void advance_to(const Problem<typename Config::Args>& problem, Cursor& at, int end) {
  const int units = problem.args.batch_invariant ? 1 : end - at.step;
  at.step = end;
  next_unit<Config>(problem, at, units);
}

template <class Config>
class WorkList {
  using Problem = sm80::Problem<typename Config::Args>;

 public:
  // By whole warps.
  __device__ explicit WorkList(const Problem& problem)
      : problem_(problem),
        heads_(static_cast<int>(problem.args.Hk) * problem.row_blocks),
        are_alike_(are_alike(problem)) {
    const int batch = static_cast<int>(problem.args.B);
    if (are_alike_) {
      units_ = std::int64_t{keys_of<Config>(problem, 0).units()} * batch * heads_;
    } else {
      std::int64_t units = 0;
      for (int b = threadIdx.x % 32; b < batch; b += 32)
        units += keys_of<Config>(problem, b).units();
#pragma unroll
      for (int lanes = 16; lanes > 0; lanes /= 2) units += __shfl_xor_sync(~0u, units, lanes);
      units_ = units * heads_;
    }
    shares_ = shares(std::int64_t{batch} * heads_);
  }

  __device__ int shares() const { return shares_; }

  // The first unit of a share.
  __device__ std::int64_t begin(int share) const { return share * units_ / shares_; }
  // The share that a unit belongs to.
  __device__ int share_of(std::int64_t unit) const {
    return static_cast<int>(((unit + 1) * shares_ - 1) / units_);
  }

  // Where a share begins. By whole warps.
  __device__ Cursor first_of(int share) const {
    std::int64_t unit = begin(share);
    Cursor at;
    at.units_left = static_cast<int>(begin(share + 1) - unit);
    at.batch = 0;
    if (are_alike_) {
      at.keys = keys_of<Config>(problem_, 0);
      const std::int64_t of_entry = std::int64_t{at.keys.units()} * heads_;
      at.batch = static_cast<int>(unit / of_entry);
      unit %= of_entry;
    } else {
      find_entry(at, unit);
    }
    const int head = static_cast<int>(unit / at.keys.units());
    at.kv_head = head / problem_.row_blocks;
    at.row_block = head % problem_.row_blocks;
    at.step = static_cast<int>(unit % at.keys.units()) * at.keys.unit;
    at.unit_end = min(at.step + at.keys.unit, at.keys.steps);
    return at;
  }

 private:
  // The batch entry that `unit` of the list belongs to; of the entries before it, `unit` loses the
  // units.
  __device__ void find_entry(Cursor& at, std::int64_t& unit) const {
    const int batch = static_cast<int>(problem_.args.B), lane = threadIdx.x % 32;
    for (int first = 0;; first += 32) {
      const int b = first + lane;
      const std::int64_t own =
          b < batch ? std::int64_t{keys_of<Config>(problem_, b).units()} * heads_ : 0;
      std::int64_t before = own;  // with its own, to begin with
#pragma unroll
      for (int lanes = 1; lanes < 32; lanes *= 2) {
        const std::int64_t other = __shfl_up_sync(~0u, before, lanes);
        if (lane >= lanes) before += other;
      }
      const unsigned later = __ballot_sync(~0u, before > unit);
      if (later == 0) {
        unit -= __shfl_sync(~0u, before, 31);
        continue;
      }
      const int found = __ffs(static_cast<int>(later)) - 1;
      unit -= __shfl_sync(~0u, before - own, found);
      at.batch = first + found;
      at.keys = keys_of<Config>(problem_, at.batch);
      return;
    }
  }

  // How many shares: one for each thread block that has kLeastKeys keys, but no fewer than there
  // are multiprocessors; and where it costs little, the same number for each head, so that no share
  // lies in two.
  __device__ int shares(std::int64_t heads) const {
    constexpr int kLeastKeys = 512;
    const std::int64_t most = units_ < gridDim.x ? units_ : gridDim.x;
    if (problem_.args.batch_invariant) return static_cast<int>(most);
    std::int64_t wanted = ceil_div<kLeastKeys / Config::B_c>(units_);
    if (wanted < problem_.multiprocessors) wanted = problem_.multiprocessors;
    if (wanted > most) wanted = most;
    const std::int64_t even = wanted / heads * heads;
    return static_cast<int>(8 * even >= 7 * wanted ? even : wanted);
  }

  const Problem& problem_;
  const int heads_;  // of a batch entry, times row blocks
  const bool are_alike_;
  std::int64_t units_;
  int shares_;
};

}  // namespace kernelmint::flash_decode::sm80
