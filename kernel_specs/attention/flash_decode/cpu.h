// Attention of few queries over a cache on the CPU. A task takes some of the keys of one key head,
// for all queries that share it, and leaves its part of each row: output, maximum and sum. The
// cache's length decides which keys a part has, and parts are added up in their order: results
// depend neither on the number of threads nor on the rest of the batch.
#pragma once

#include "attention/cpu_pages.h"
#include "attention/cpu_scores.h"
#include "attention/cpu_some.h"
#include "cpu_convert.h"
#include "cpu_math.h"
#include "cpu_vector.h"
#include "dtypes.h"
#include "integers.h"
#include "launch.h"
#include "parallel.h"

namespace kernelmint::flash_decode {
inline namespace KERNELMINT_ISA {

using namespace kernelmint::attention;

template <class Config>
class Decode {
  using T = typename Config::dtype;
  using Args = typename Config::Args;
  static constexpr int kKeys = Config::B_c, kRowsAtOnce = 4;

 public:
  Decode(const Args& args, int workers)
      : args_(args),
        workers_(workers),
        rows_(args.Sq * (args.H / args.Hk)),
        group_(args.H / args.Hk),
        query_width_(round_up(args.D, std::int64_t{kLanes})),
        width_(round_up(args.Dv, std::int64_t{kLanes})) {
    for (std::int64_t b = 0; b < args.B; ++b) parts_ = larger(parts_, keys_of(b).parts());
  }

  std::int64_t heads() const { return args_.B * args_.Hk; }
  std::int64_t tasks() const { return heads() * parts_; }
  // The bytes of all parts: each row's output, maximum and sum; and the queries that a worker is
  // at.
  std::size_t bytes() const {
    const std::int64_t floats = workers_ * query_width_ + tasks() * (width_ + 2);
    return static_cast<std::size_t>(floats * rows_) * sizeof(float);
  }
  void use(void* memory) {
    queries_ = static_cast<float*>(memory);
    parts_of_rows_ = queries_ + workers_ * rows_ * query_width_;
  }

  // An error if a page that is read is not there.
  LaunchResult check() const {
    if (args_.block_table.data == nullptr) return {};
    for (std::int64_t b = 0; b < args_.B; ++b) {
      const Keys keys = keys_of(b);
      const LaunchResult found =
          check_pages(args_.block_table, b, keys.first, keys.length, args_.P, args_.N);
      if (found.error != nullptr) return found;
    }
    return {};
  }

  // Keys of a head become a part.
  void take(std::int64_t task, int worker) const {
    const std::int64_t batch = task / parts_ / args_.Hk, head = task / parts_ % args_.Hk;
    const Keys keys = keys_of(batch);
    const std::int64_t begin = keys.first + task % parts_ * keys.each;
    if (begin >= keys.length) return;
    const std::int64_t end = smaller(begin + keys.each, keys.length);
    float* queries = queries_ + worker * rows_ * query_width_;
    load_queries(queries, batch, head);
    Block block{.batch = batch, .head = head};
    for (std::int64_t row = 0; row < rows_; ++row) clear(part(task, row));
    for (std::int64_t key = begin; key < end; key += kKeys) {
      find(block, key, end);
      std::int64_t row = 0;
      for (; row + kRowsAtOnce <= rows_; row += kRowsAtOnce)
        take<kRowsAtOnce>(block, queries, task, keys, row);
      for (; row < rows_; ++row) take<1>(block, queries, task, keys, row);
    }
  }

  // The parts of a head become its rows of the result.
  void merge(std::int64_t task) const {
    const std::int64_t batch = task / args_.Hk, kv_head = task % args_.Hk;
    const std::int64_t parts = keys_of(batch).parts();
    for (std::int64_t row = 0; row < rows_; ++row) {
      const std::int64_t query = row / group_, head = kv_head * group_ + row % group_;
      const auto of_part = [&](std::int64_t p) { return part(task * parts_ + p, row); };
      float sink = kNoKey;
      if (args_.s_aux.data != nullptr)
        sink = load_some(args_.s_aux.template at<const T>(head), 1)[0] * kLog2E;
      float maximum = sink;
      for (std::int64_t p = 0; p < parts; ++p)
        maximum = maximum > maximum_of(of_part(p)) ? maximum : maximum_of(of_part(p));
      const float shift = maximum == kNoKey ? 0 : maximum;
      float sum = power(sink - shift);
      for (std::int64_t p = 0; p < parts; ++p) {
        float& weight = maximum_of(of_part(p));
        weight = power(weight - shift);
        sum += sum_of(of_part(p)) * weight;
      }
      const float factor = sum == 0 ? 0 : 1 / sum;
      T* o = args_.o.template at<T>(batch, query, head);
      for (std::int64_t d = 0; d < args_.Dv; d += kLanes) {
        F32 total{};
        for (std::int64_t p = 0; p < parts; ++p)
          total = fma(splat(maximum_of(of_part(p))), load(of_part(p) + d), total);
        store_some(o + d, total * factor, args_.Dv - d);
      }
      if (args_.lse.data != nullptr)
        *args_.lse.template at<float>(batch, head, query) = (maximum + __builtin_log2f(sum)) * kLn2;
    }
  }

 private:
  static constexpr std::int64_t kLeastKeys = 256, kMostParts = 128;  // keys a part, parts a head

  struct Keys {
    std::int64_t length, first;  // all from `first` on are seen by some query
    std::int64_t each;           // keys of a part

    std::int64_t parts() const { return ceil_div(length - first, each); }
  };

  // Keys and values of a block, where they lie.
  struct Block {
    std::int64_t batch, head, first = 0;
    int count = 0;
    const T* keys[kKeys];  // the last one's again after `count`
    const T* values[kKeys];
  };

  Keys keys_of(std::int64_t batch) const {
    const std::int64_t capacity =
        args_.block_table.data != nullptr ? args_.pages * args_.P : args_.P;
    Keys keys{capacity, 0, 0};
    if (args_.seqused_k.data != nullptr)
      keys.length = larger(smaller(*args_.seqused_k.template at<const i32>(batch), capacity), 0);
    if (args_.leftpad_k.data != nullptr)
      keys.first = larger(smaller(*args_.leftpad_k.template at<const i32>(batch), keys.length), 0);
    if (args_.window_left >= 0)
      keys.first = larger(keys.first, keys.length - args_.Sq - args_.window_left);
    keys.each = larger(
        kLeastKeys, round_up(ceil_div(keys.length - keys.first, kMostParts), std::int64_t{kKeys}));
    return keys;
  }

  void find(Block& block, std::int64_t first, std::int64_t end) const {
    block.first = first;
    block.count = static_cast<int>(smaller(end - first, kKeys));
    for (int i = 0; i < kKeys; ++i) {
      std::int64_t cache = block.batch, row = first + (i < block.count ? i : block.count - 1);
      if (args_.block_table.data != nullptr) {
        cache = *args_.block_table.template at<const i32>(block.batch, row / args_.P);
        row %= args_.P;
      }
      block.keys[i] = args_.k_cache.template at<const T>(cache, row, block.head);
      block.values[i] = args_.v_cache.template at<const T>(cache, row, block.head);
    }
  }

  // The queries of a key head in f32, with zeros after their columns.
  void load_queries(float* queries, std::int64_t batch, std::int64_t kv_head) const {
    for (std::int64_t row = 0; row < rows_; ++row) {
      const T* q =
          args_.q.template at<const T>(batch, row / group_, kv_head * group_ + row % group_);
      for (std::int64_t d = 0; d < args_.D; d += kLanes)
        store(queries + row * query_width_ + d, load_some(q + d, args_.D - d));
    }
  }

  float* part(std::int64_t task, std::int64_t row) const {
    return parts_of_rows_ + (task * rows_ + row) * (width_ + 2);
  }
  float& maximum_of(float* part) const { return part[width_]; }
  float& sum_of(float* part) const { return part[width_ + 1]; }
  void clear(float* part) const {
    for (std::int64_t d = 0; d < width_; d += kLanes) store(part + d, F32{});
    maximum_of(part) = kNoKey;
    sum_of(part) = 0;
  }

  KERNELMINT_ALWAYS_INLINE static float power(float x) { return exp2(splat(x))[0]; }

  // The online softmax of kRows rows over a block.
  template <int kRows>
  KERNELMINT_ALWAYS_INLINE void take(const Block& block, const float* queries, std::int64_t task,
                                     const Keys& keys, std::int64_t first_row) const {
    alignas(64) float scores[kRows][kKeys];
    multiply_keys<kRows>(block, queries + first_row * query_width_, scores);
    for (int r = 0; r < kRows; ++r) {
      float* of_row = part(task, first_row + r);
      const float before = maximum_of(of_row);
      F32 greatest = splat(before);
      for (int i = 0; i < block.count; i += kLanes) {
        const F32 s = finished(load(&scores[r][i]), block, i, keys, first_row + r);
        store(&scores[r][i], s);
        greatest = max(greatest, s);
      }
      const float now = reduce_max(greatest), shift = now == kNoKey ? 0 : now;
      const float rescale = power(before - shift);
      F32 sum{};
      for (int i = 0; i < block.count; i += kLanes) {
        const F32 p = exp2(load(&scores[r][i]) - shift);
        store(&scores[r][i], p);
        sum += p;
      }
      maximum_of(of_row) = now;
      sum_of(of_row) = sum_of(of_row) * rescale + reduce_add(sum);
      if (rescale != 1.0f)
        for (std::int64_t d = 0; d < width_; d += kLanes)
          store(of_row + d, load(of_row + d) * rescale);
    }
    const Seen seen = seen_of(block, keys, first_row);
    if (kRows == 1 || seen == seen_of(block, keys, first_row + kRows - 1)) {
      multiply_columns<kRows, kRows == 1 ? 8 : kVectorRegisters / 8>(block, seen, scores, task,
                                                                     first_row, 0);
      return;
    }
    for (int r = 0; r < kRows; ++r) {
      multiply_columns<1, 8>(block, seen_of(block, keys, first_row + r),
                             reinterpret_cast<const float (&)[1][kKeys]>(scores[r]), task,
                             first_row + r, 0);
    }
  }

  // The keys of a block that a row sees, [begin, end). Values of other keys are not multiplied: 0
  // times a value that is not finite is NaN.
  struct Seen {
    int begin, end;

    bool operator==(const Seen&) const = default;
  };

  KERNELMINT_ALWAYS_INLINE Seen seen_of(const Block& block, const Keys& keys,
                                        std::int64_t row) const {
    const std::int64_t own = keys.length - args_.Sq + row / group_ - block.first;
    Seen seen{0, block.count};
    if (args_.window_left >= 0)
      seen.begin = static_cast<int>(larger(smaller(own - args_.window_left, block.count), 0));
    if (args_.window_right >= 0)
      seen.end = static_cast<int>(larger(smaller(own + args_.window_right + 1, block.count), 0));
    return seen;
  }

  // From column `d` on: as many vectors of columns together as fit, then fewer.
  template <int kRows, int kVectors>
  KERNELMINT_ALWAYS_INLINE void multiply_columns(const Block& block, Seen seen,
                                                 const float (&probabilities)[kRows][kKeys],
                                                 std::int64_t task, std::int64_t first_row,
                                                 std::int64_t d) const {
    for (; d + kVectors * kLanes <= args_.Dv; d += kVectors * kLanes)
      multiply_values<kRows, kVectors, false>(block, seen, probabilities, task, first_row, d);
    if constexpr (kVectors > 1) {
      multiply_columns<kRows, kVectors / 2>(block, seen, probabilities, task, first_row, d);
    } else if (d < args_.Dv) {
      multiply_values<kRows, 1, true>(block, seen, probabilities, task, first_row, d);
    }
  }

  // scores = queries times the block's keys.
  template <int kRows>
  KERNELMINT_ALWAYS_INLINE void multiply_keys(const Block& block, const float* queries,
                                              float (&scores)[kRows][kKeys]) const {
    // The rows of keys at one time: there is a register for the address of each row.
    constexpr int kKeysAtOnce = kLanes / kRows, kTogether = kKeysAtOnce < 8 ? kKeysAtOnce : 8;
    const std::int64_t whole = args_.D / kLanes * kLanes;
    for (int key = 0; key < block.count; key += kKeysAtOnce) {
      F32 sums[kLanes] = {};
      for (int first = 0; first < kKeysAtOnce; first += kTogether) {
        const T* rows[kTogether];
#pragma GCC unroll 8
        for (int i = 0; i < kTogether; ++i) rows[i] = block.keys[key + first + i];
        for (std::int64_t d = 0; d < whole; d += kLanes) {
#pragma GCC unroll 8
          for (int i = 0; i < kTogether; ++i) {
            const F32 k = load(rows[i] + d);
#pragma GCC unroll 4
            for (int r = 0; r < kRows; ++r) {
              F32& sum = sums[r * kKeysAtOnce + first + i];
              sum = fma(load(queries + r * query_width_ + d), k, sum);
            }
          }
        }
      }
      if (whole < args_.D) {
        for (int i = 0; i < kKeysAtOnce; ++i) {
          const F32 k = load_some(block.keys[key + i] + whole, args_.D - whole);
          for (int r = 0; r < kRows; ++r)
            sums[r * kKeysAtOnce + i] =
                fma(load(queries + r * query_width_ + whole), k, sums[r * kKeysAtOnce + i]);
        }
      }
      const F32 each = sum_each(sums);
      for (int r = 0; r < kRows; ++r)
        __builtin_memcpy(&scores[r][key], reinterpret_cast<const float*>(&each) + r * kKeysAtOnce,
                         kKeysAtOnce * sizeof(float));
    }
  }

  // A vector of scores as exponents of 2: scaled, capped, biased; -inf if the row sees nothing.
  KERNELMINT_ALWAYS_INLINE F32 finished(F32 s, const Block& block, int i, const Keys& keys,
                                        std::int64_t row) const {
    const std::int64_t own = keys.length - args_.Sq + row / group_;
    const std::int64_t distance = own - block.first - i;  // to the first lane's key, which is less
    const I32 ahead = splat(static_cast<std::int32_t>(distance)) - lane_numbers();
    float slope = 0;
    if (args_.alibi_slopes.data != nullptr)
      slope = *args_.alibi_slopes.template at<const float>(block.batch,
                                                           block.head * group_ + row % group_);
    s = finished_scores(args_, s, slope, ahead);
    return lane_numbers() < block.count - i ? s : splat(kNoKey);
  }

  // parts[d .. ) += probabilities times the block's values, kVectors vectors of columns; of the
  // last one, if kIsSome, as many as there are.
  template <int kRows, int kVectors, bool kIsSome>
  KERNELMINT_ALWAYS_INLINE void multiply_values(const Block& block, Seen seen,
                                                const float (&probabilities)[kRows][kKeys],
                                                std::int64_t task, std::int64_t first_row,
                                                std::int64_t d) const {
    F32 sums[kRows][kVectors] = {};
    for (int key = seen.begin; key < seen.end; ++key) {
      const T* values = block.values[key] + d;
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i) {
        const F32 v = kIsSome ? load_some(values, args_.Dv - d) : load(values + i * kLanes);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r)
          sums[r][i] = fma(splat(probabilities[r][key]), v, sums[r][i]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      float* of_row = part(task, first_row + r) + d;
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i)
        store(of_row + i * kLanes, load(of_row + i * kLanes) + sums[r][i]);
    }
  }

  const Args& args_;
  const std::int64_t workers_, rows_, group_;
  const std::int64_t query_width_, width_;  // the width of a row in f32: whole vectors
  std::int64_t parts_ = 0;                  // parts of a head, at most
  float* queries_ = nullptr;                // [workers][rows][query_width]
  float* parts_of_rows_ = nullptr;          // [heads][parts][rows][width + 2]
};

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::flash_decode

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  if (args.B == 0 || args.Sq == 0 || args.H == 0) return {};
  flash_decode::Decode<Config> decode(args, context.num_threads);
  if (const LaunchResult wrong = decode.check(); wrong.error != nullptr) return wrong;
  const Allocation memory = context.allocate(decode.bytes());
  if (memory.error != nullptr) return {memory.error};
  decode.use(memory.data);
  parallel_for(decode.tasks(), context.num_threads,
               [&](std::int64_t task, int worker) { decode.take(task, worker); });
  parallel_for(decode.heads(), context.num_threads,
               [&](std::int64_t head, int /*worker*/) { decode.merge(head); });
  return {};
}

}  // namespace kernelmint
