// Attention of many queries on the CPU, of sequences of any lengths. A task is a tile of B_r rows
// of one sequence: queries of one head, or, if a sequence has few, of several heads that share
// keys. Blocks of B_c keys and values pass by, the last that a row of the tile sees first, up to
// the first one: FlashAttention-2's loops, on the products that flash_forward has, too. What a tile
// is follows from its own sequence alone, and so do the bits of its results.
#pragma once

#include <type_traits>

#include "attention/cpu_hidden_values.h"
#include "attention/cpu_pages.h"
#include "attention/cpu_products.h"
#include "attention/cpu_scores.h"
#include "attention/cpu_softmax.h"
#include "attention/cpu_some.h"
#include "cpu_scratch.h"
#include "dtypes.h"
#include "integers.h"
#include "launch.h"
#include "parallel.h"

namespace kernelmint::flash_prefill {
inline namespace KERNELMINT_ISA {

using namespace kernelmint::attention;

constexpr std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
constexpr std::int64_t most(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

template <class Config>
class Prefill {
 public:
  using T = typename Config::dtype;
  using Args = typename Config::Args;
  static constexpr int D = Config::d_head, B_r = Config::B_r, B_c = Config::B_c;
  using ManyProducts = typename ProductsFor<T, D, B_r, B_c>::type;
  using FewProducts = DirectProducts<T, D, B_c>;
  static_assert(ManyProducts::kFewRows <= FewProducts::kStripRows, "they must fit");

  struct alignas(64) Worker {
    ManyProducts products;
    FewProducts few_products;
    RowStatistics<B_r> statistics;
    HiddenValues<T, D, B_c> hidden;
    std::int64_t begin[B_r], end[B_r];  // the keys that each row sees; both rise
    float slope[B_r];                   // what a row's scores lose for each key of distance
    alignas(64) T rows[2][B_c][D];      // keys and values that do not lie as the products read
    alignas(64) T query[D];
  };

  explicit Prefill(const Args& args)
      : args_(args),
        sequences_(args.cu_seqlens_q.data != nullptr ? args.Cq - 1 : args.Nq),
        group_(args.H / args.Hk),
        is_whole_(args.D == D && args.Dv == D && args.block_table.data == nullptr),
        changes_scores_(usable_cap(args.softcap) > 0 || args.alibi_slopes.data != nullptr),
        scale_log2_(args.softmax_scale * kLog2E) {}

  // What comes before the tasks of each part, and the number of all: parts() + 1 of them.
  void count(std::int64_t* tasks) {
    first_task_ = tasks;
    tasks[0] = 0;
    for (std::int64_t s = 0; s < parts(); ++s) {
      const Sequence sequence = find(s);
      tasks[s + 1] = tasks[s] + ceil_div(sequence.rows, sequence.queries_at_once) * args_.Hk *
                                    sequence.head_blocks;
    }
  }
  // The sequences, and, of packed ones, the rows before the first.
  std::int64_t parts() const { return sequences_ + (args_.cu_seqlens_q.data != nullptr); }
  std::int64_t tasks() const { return first_task_[parts()]; }

  // An error if a page that is read is not there.
  LaunchResult check() const {
    if (args_.block_table.data == nullptr) return {};
    for (std::int64_t s = 0; s < sequences_; ++s) {
      const Sequence of = find(s);
      if (of.queries == 0) continue;
      const std::int64_t own = of.end - of.queries, last = of.end - 1;
      const std::int64_t first =
          args_.window_left < 0 ? of.begin : most(of.begin, own - args_.window_left);
      const std::int64_t end =
          args_.window_right < 0 ? of.end : least(of.end, last + args_.window_right + 1);
      const LaunchResult found = check_pages(args_.block_table, s, first, end, args_.Tk, args_.Nk);
      if (found.error != nullptr) return found;
    }
    return {};
  }

  // Tiles of the last queries come first within a sequence: under a causal mask they are longest.
  void run(std::int64_t index, Worker& worker) const {
    std::int64_t s = 0, behind = parts();
    while (behind - s > 1) {
      const std::int64_t middle = (s + behind) / 2;
      (first_task_[middle] <= index ? s : behind) = middle;
    }
    Tile tile{.of = find(s)};
    const std::int64_t of_all_heads = args_.Hk * tile.of.head_blocks;
    index -= first_task_[s];
    tile.kv_head = index % of_all_heads / tile.of.head_blocks;
    const std::int64_t head_in_group = index % tile.of.head_blocks * tile.of.heads_at_once;
    tile.first_head = tile.kv_head * group_ + head_in_group;
    tile.heads = least(tile.of.heads_at_once, group_ - head_in_group);
    tile.first_query =
        (ceil_div(tile.of.rows, tile.of.queries_at_once) - 1 - index / of_all_heads) *
        tile.of.queries_at_once;
    const std::int64_t behind_tile = tile.first_query + tile.of.queries_at_once;
    tile.rows =
        static_cast<int>((least(behind_tile, tile.of.queries) - tile.first_query) * tile.heads);
    for (std::int64_t query = most(tile.first_query, tile.of.queries);
         query < least(behind_tile, tile.of.rows); ++query)
      clear(tile, query);
    if (tile.rows <= 0) return;
    if (tile.rows <= ManyProducts::kFewRows) {
      run(tile, worker, worker.few_products);
    } else {
      run(tile, worker, worker.products);
    }
  }

 private:
  // Where a sequence is. Lengths out of bounds count as the nearest.
  struct Sequence {
    std::int64_t index;
    std::int64_t entry, first_row, rows, queries;   // of q: a batch entry, and from which row on
    std::int64_t key_entry, first_key, begin, end;  // of k: keys [begin, end) from `first_key` on
    std::int64_t heads_at_once, head_blocks, queries_at_once;  // of a tile
  };

  // Row r is query first_query + r / heads of head first_head + r % heads.
  struct Tile {
    Sequence of;
    std::int64_t kv_head = 0, first_head = 0, heads = 0, first_query = 0;
    int rows = 0;

    std::int64_t head(int row) const { return first_head + row % heads; }
    std::int64_t query(int row) const { return first_query + row / heads; }
    std::int64_t own_key(int row) const { return query(row) + of.end - of.queries; }
  };

  static std::int64_t number(const ConstTensorView<1>& of, std::int64_t i) {
    return *of.at<const i32>(i);
  }
  static std::int64_t within(std::int64_t value, std::int64_t low, std::int64_t high) {
    return most(low, least(value, high));
  }

  // A part's place. The rows before the first sequence are as the last one, without a query.
  Sequence find(std::int64_t s) const {
    const bool is_before = args_.cu_seqlens_q.data != nullptr && s == sequences_;
    if (is_before) --s;
    Sequence found{.index = s, .entry = s, .rows = args_.Tq, .key_entry = s, .end = args_.Tk};
    std::int64_t queries = args_.Tq;
    if (args_.cu_seqlens_q.data != nullptr) {
      found.entry = 0;
      if (!is_before) found.first_row = within(number(args_.cu_seqlens_q, s), 0, args_.Tq);
      const std::int64_t end =
          within(number(args_.cu_seqlens_q, is_before ? 0 : s + 1), found.first_row, args_.Tq);
      queries = is_before ? 0 : end - found.first_row;
      found.rows = (is_before || s + 1 < sequences_ ? end : args_.Tq) - found.first_row;
    }
    found.queries = queries;
    if (args_.seqused_q.data != nullptr)
      found.queries = within(number(args_.seqused_q, s), 0, queries);
    if (args_.cu_seqlens_k.data != nullptr) {
      found.key_entry = 0;
      found.first_key = within(number(args_.cu_seqlens_k, s), 0, args_.Tk);
      found.end =
          within(number(args_.cu_seqlens_k, s + 1), found.first_key, args_.Tk) - found.first_key;
    } else if (args_.block_table.data != nullptr) {
      found.end = args_.pages * args_.Tk;
    }
    if (args_.seqused_k.data != nullptr)
      found.end = within(number(args_.seqused_k, s), 0, found.end);
    if (args_.leftpad_k.data != nullptr)
      found.begin = within(number(args_.leftpad_k, s), 0, found.end);
    found.heads_at_once = within(B_r / most(1, found.queries), 1, group_);
    found.head_blocks = ceil_div(group_, found.heads_at_once);
    found.queries_at_once = B_r / found.heads_at_once;
    return found;
  }

  template <class Products>
  void run(const Tile& tile, Worker& worker, Products& products) const {
    products.begin();
    begin_rows(tile, worker, products);
    const std::int64_t begin = worker.begin[0], end = worker.end[tile.rows - 1];
    for (std::int64_t block = ceil_div(most(0, end - begin), B_c); block-- > 0;) {
      const std::int64_t first_key = begin + block * B_c;
      const int count = static_cast<int>(least(end - first_key, B_c));
      const Rows keys = rows_of(args_.k, tile, first_key, count, args_.D, worker.rows[0]);
      Rows values = rows_of(args_.v, tile, first_key, count, args_.Dv, worker.rows[1]);
      // Some row sees some of the block and not all, or values are split.
      const bool hides = Products::kSplits || first_key + count > worker.end[0] ||
                         first_key < worker.begin[tile.rows - 1];
      if (hides)
        values.first = worker.hidden.find(values.first, values.stride, count, values.stride);
      products.load_keys_values(keys.first, keys.stride, values.first, values.stride, count);
      for (int first = 0; first < tile.rows; first += Products::kStripRows) {
        const int strip = static_cast<int>(least(tile.rows - first, Products::kStripRows));
        const auto behind = [&](int i) __attribute__((always_inline)) {
          return static_cast<int>(within(worker.end[first + i] - first_key, 0, count));
        };
        const auto before = [&](int i) __attribute__((always_inline)) {
          return static_cast<int>(within(worker.begin[first + i] - first_key, 0, count));
        };
        const int used = Products::round_up(behind(strip - 1));
        if (used == 0 || before(0) == count) continue;
        products.multiply_queries_keys(first, strip, used);
        // Scores are finished here if the softmax cannot: it scales, and hides keys at the end.
        const bool finishes = changes_scores_ || before(strip - 1) > 0;
        if (finishes)
          for (int i = 0; i < strip; ++i)
            finish_scores(products.scores[i], tile, worker, first + i, first_key, behind(i));
        online_softmax(products, worker.statistics, products.out, first, strip, used,
                       finishes ? 1.0f : scale_log2_, behind);
        products.multiply_probabilities_values(first, strip, used);
        if (!hides || worker.hidden.num_keys == 0) continue;
        for (int i = 0; i < strip; ++i)
          worker.hidden.add(products, i, before(i), behind(i), products.out[first + i]);
      }
    }
    products.end();
    finish_rows(tile, worker, products);
  }

  // Scores of a row as exponents of 2, of the block's first `count` keys.
  KERNELMINT_ALWAYS_INLINE void finish_scores(float* scores, const Tile& tile, const Worker& worker,
                                              int row, std::int64_t first_key, int count) const {
    for (int key = 0; key < count; key += kLanes) {
      const I32 ahead =
          splat(static_cast<std::int32_t>(tile.own_key(row) - first_key - key)) - lane_numbers();
      store(scores + key, finished_scores(args_, load(scores + key), worker.slope[row], ahead));
    }
  }

  struct Rows {
    const T* first;
    std::int64_t stride;
  };

  // Keys or values of a block, of D columns: where they lie, or a copy with zeros behind theirs.
  template <class View>
  Rows rows_of(const View& of, const Tile& tile, std::int64_t first_key, int count,
               std::int64_t columns, T (&copies)[B_c][D]) const {
    if (is_whole_)
      return {
          of.template at<const T>(tile.of.key_entry, tile.of.first_key + first_key, tile.kv_head),
          of.stride[1]};
    for (int i = 0; i < count; ++i) {
      std::int64_t entry = tile.of.key_entry, row = tile.of.first_key + first_key + i;
      if (args_.block_table.data != nullptr) {
        entry = *args_.block_table.template at<const i32>(tile.of.index, row / args_.Tk);
        row %= args_.Tk;
      }
      copy(copies[i], of.template at<const T>(entry, row, tile.kv_head), columns);
    }
    return {copies[0], D};
  }

  KERNELMINT_ALWAYS_INLINE static void copy(T* to, const T* from, std::int64_t columns) {
    __builtin_memcpy(to, from, static_cast<std::size_t>(columns) * sizeof(T));
    __builtin_memset(static_cast<void*>(to + columns), 0,
                     static_cast<std::size_t>(D - columns) * sizeof(T));
  }

  // Loads the queries, clears what is known of their rows, and finds which keys they see.
  template <class Products>
  void begin_rows(const Tile& tile, Worker& worker, Products& products) const {
    worker.statistics.clear(tile.rows);
    for (int r = 0; r < tile.rows; ++r) {
      const T* q = args_.q.template at<const T>(tile.of.entry, tile.of.first_row + tile.query(r),
                                                tile.head(r));
      if (args_.D != D) {
        copy(worker.query, q, args_.D);
        q = worker.query;
      }
      products.load_query(r, q);
      for (int d = 0; d < D; d += kLanes) store(&products.out[r][d], F32{});
      const std::int64_t own = tile.own_key(r);
      worker.begin[r] = tile.of.begin;
      worker.end[r] = tile.of.end;
      if (args_.window_left >= 0)
        worker.begin[r] = within(own - args_.window_left, tile.of.begin, tile.of.end);
      if (args_.window_right >= 0)
        worker.end[r] = within(own + args_.window_right + 1, tile.of.begin, tile.of.end);
      worker.slope[r] = 0;
      if (args_.alibi_slopes.data != nullptr)
        worker.slope[r] = *args_.alibi_slopes.template at<const float>(tile.of.index, tile.head(r));
    }
  }

  // Divides by the sums, to which the sink adds, and writes o and lse.
  template <class Products>
  void finish_rows(const Tile& tile, const Worker& worker, const Products& products) const {
    for (int r = 0; r < tile.rows; ++r) {
      float sum = reduce_add(load(worker.statistics.sum[r]));
      float maximum = worker.statistics.maximum[r], factor = 1;
      if (args_.s_aux.data != nullptr) {
        const float sink = load_some(args_.s_aux.template at<const T>(tile.head(r)), 1)[0] * kLog2E;
        const float now = sink > maximum ? sink : maximum, shift = now == kNoKey ? 0 : now;
        factor = exp2(splat(maximum - shift))[0];
        sum = sum * factor + exp2(splat(sink - shift))[0];
        maximum = now;
      }
      const F32 divisor = splat(sum == 0 ? 1 : sum);
      const std::int64_t row = tile.of.first_row + tile.query(r);
      T* o = args_.o.template at<T>(tile.of.entry, row, tile.head(r));
      for (std::int64_t d = 0; d < args_.Dv; d += kLanes)
        store_some(o + d, load(&products.out[r][d]) * factor / divisor, args_.Dv - d);
      if (args_.lse.data != nullptr)
        *args_.lse.template at<float>(tile.of.entry, tile.head(r), row) =
            sum == 0 ? kNoKey : maximum * kLn2 + __builtin_logf(sum);
    }
  }

  // A row of no sequence.
  void clear(const Tile& tile, std::int64_t query) const {
    const std::int64_t row = tile.of.first_row + query;
    for (std::int64_t head = tile.first_head; head < tile.first_head + tile.heads; ++head) {
      __builtin_memset(args_.o.template at<T>(tile.of.entry, row, head), 0,
                       static_cast<std::size_t>(args_.Dv) * sizeof(T));
      if (args_.lse.data != nullptr)
        *args_.lse.template at<float>(tile.of.entry, head, row) = kNoKey;
    }
  }

  const Args& args_;
  const std::int64_t sequences_, group_;  // query heads that share a key head
  const bool is_whole_;                   // keys and values lie as the products read them
  const bool changes_scores_;
  const float scale_log2_;
  const std::int64_t* first_task_ = nullptr;
};

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::flash_prefill

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  static_assert(std::is_same_v<Isa, isa::KERNELMINT_ISA>, "one instruction set a translation unit");
  using Prefill = flash_prefill::Prefill<Config>;
  using Worker = typename Prefill::Worker;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  if (args.Tq == 0 || args.H == 0) return {};
  Prefill prefill(args);
  if (const LaunchResult wrong = prefill.check(); wrong.error != nullptr) return wrong;
  const Allocation counts =
      context.allocate(static_cast<std::size_t>(prefill.parts() + 1) * sizeof(std::int64_t));
  if (counts.error != nullptr) return {counts.error};
  prefill.count(static_cast<std::int64_t*>(counts.data));
  const std::int64_t tasks = prefill.tasks();
  const int threads = tasks < context.num_threads ? static_cast<int>(tasks) : context.num_threads;
  auto* workers =
      reinterpret_cast<Worker*>(cpu::Scratch::of_thread().reserve(sizeof(Worker) * threads));
  if (workers == nullptr && threads > 0) return {"no memory for the tiles of that many threads"};
  parallel_for(tasks, threads,
               [&](std::int64_t index, int worker) { prefill.run(index, workers[worker]); });
  return {};
}

}  // namespace kernelmint
