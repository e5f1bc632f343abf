// Attention of many queries on the CPU, of sequences of any lengths. A task is a tile of B_r rows
// of one sequence: queries of one head, or, if a sequence has few, of several heads that share
// keys. A tile follows from its own sequence, and so do the bits of its results.
#pragma once

#include <type_traits>

#include "attention/cpu.h"
#include "attention/cpu_pages.h"
#include "attention/cpu_sequences.h"
#include "dtypes.h"
#include "integers.h"
#include "launch.h"

namespace kernelmint::flash_prefill {
inline namespace KERNELMINT_ISA {

using namespace kernelmint::attention;

template <class Config>
class Prefill {
 public:
  using T = typename Config::dtype;
  using Args = typename Config::Args;
  static constexpr int D = Config::d_head, B_r = Config::B_r, B_c = Config::B_c;
  static constexpr bool kFinishesScores = true;
  using Trace = NoTrace;

  struct Worker : TileWorker<Config> {
    float slope[B_r];               // the loss of a row's scores for each key of distance
    alignas(64) T rows[2][B_c][D];  // keys and values that do not lie as the products read
    alignas(64) T query[D];
  };

  struct Sequence : SequencePlace {
    std::int64_t heads_at_once, head_blocks, queries_at_once;  // the tile's
  };

  // Row r is query first_query + r / heads of head first_head + r % heads.
  struct Tile {
    Sequence of;
    std::int64_t kv_head = 0, first_head = 0, heads = 0, first_query = 0;
    int rows = 0;

    std::int64_t entry() const { return of.entry; }
    std::int64_t head(int r) const { return first_head + r % heads; }
    std::int64_t query(int r) const { return first_query + r / heads; }
    std::int64_t row(int r) const { return of.first_row + query(r); }
    std::int64_t own_key(int r) const { return query(r) + of.end - of.queries; }
  };

  explicit Prefill(const Args& args)
      : args(args),
        scale_log2(args.softmax_scale * kLog2E),
        changes_scores(usable_cap(args.softcap) > 0 || args.alibi_slopes.data != nullptr),
        sequences_(args.cu_seqlens_q.data != nullptr ? args.Cq - 1 : args.Nq),
        group_(args.H / args.Hk),
        is_whole_(args.D == D && args.Dv == D && args.block_table.data == nullptr) {}

  // Counts the tasks before each part, and all tasks: parts() + 1 numbers.
  void count(std::int64_t* tasks) {
    first_task_ = tasks;
    tasks[0] = 0;
    for (std::int64_t s = 0; s < parts(); ++s) {
      const Sequence sequence = find(s);
      tasks[s + 1] = tasks[s] + ceil_div(sequence.rows, sequence.queries_at_once) * args.Hk *
                                    sequence.head_blocks;
    }
  }
  // The sequences, and, of packed ones, the rows before the first.
  std::int64_t parts() const { return sequences_ + (args.cu_seqlens_q.data != nullptr); }
  std::int64_t tasks() const { return first_task_[parts()]; }

  // An error if a page that is read is not there.
  LaunchResult check() const {
    if (args.block_table.data == nullptr) return {};
    for (std::int64_t s = 0; s < sequences_; ++s) {
      const Sequence of = find(s);
      if (of.queries == 0) continue;
      const std::int64_t own = of.end - of.queries, last = of.end - 1;
      const std::int64_t first =
          args.window_left < 0 ? of.begin : larger(of.begin, own - args.window_left);
      const std::int64_t end =
          args.window_right < 0 ? of.end : smaller(of.end, last + args.window_right + 1);
      const LaunchResult checked = check_pages(args.block_table, s, first, end, args.Tk, args.Nk);
      if (checked.error != nullptr) return checked;
    }
    return {};
  }

  // Tiles of the last queries come first within a sequence: under a causal mask they are longest.
  void run(std::int64_t index, Worker& worker) const {
    std::int64_t s = 0, end = parts();
    while (end - s > 1) {
      const std::int64_t middle = (s + end) / 2;
      (first_task_[middle] <= index ? s : end) = middle;
    }
    Tile tile{.of = find(s)};
    const std::int64_t of_all_heads = args.Hk * tile.of.head_blocks;
    index -= first_task_[s];
    tile.kv_head = index % of_all_heads / tile.of.head_blocks;
    const std::int64_t head_in_group = index % tile.of.head_blocks * tile.of.heads_at_once;
    tile.first_head = tile.kv_head * group_ + head_in_group;
    tile.heads = smaller(tile.of.heads_at_once, group_ - head_in_group);
    tile.first_query =
        (ceil_div(tile.of.rows, tile.of.queries_at_once) - 1 - index / of_all_heads) *
        tile.of.queries_at_once;
    const std::int64_t tile_end = tile.first_query + tile.of.queries_at_once;
    tile.rows =
        static_cast<int>((smaller(tile_end, tile.of.queries) - tile.first_query) * tile.heads);
    for (std::int64_t query = larger(tile.first_query, tile.of.queries);
         query < smaller(tile_end, tile.of.rows); ++query)
      clear(tile, query);
    if (tile.rows > 0) attend(*this, tile, worker);
  }

  // Keys or values of a block, of D columns: where they lie, or a copy with zeros after theirs.
  template <bool kOfValues>
  BlockRows<T> rows_of(const Tile& tile, std::int64_t first_key, int count, Worker& worker) const {
    const auto& of = kOfValues ? args.v : args.k;
    if (is_whole_)
      return {
          of.template at<const T>(tile.of.key_entry, tile.of.first_key + first_key, tile.kv_head),
          of.stride[1]};
    for (int i = 0; i < count; ++i) {
      std::int64_t entry = tile.of.key_entry, row = tile.of.first_key + first_key + i;
      if (args.block_table.data != nullptr) {
        entry = *args.block_table.template at<const i32>(tile.of.index, row / args.Tk);
        row %= args.Tk;
      }
      copy(worker.rows[kOfValues][i], of.template at<const T>(entry, row, tile.kv_head),
           kOfValues ? args.Dv : args.D);
    }
    return {worker.rows[kOfValues][0], D};
  }

  // Finds which keys a row sees, and its query.
  const T* begin_row(const Tile& tile, int r, Worker& worker) const {
    const std::int64_t own = tile.own_key(r);
    worker.begin[r] = tile.of.begin;
    worker.end[r] = tile.of.end;
    if (args.window_left >= 0)
      worker.begin[r] = within(own - args.window_left, tile.of.begin, tile.of.end);
    if (args.window_right >= 0)
      worker.end[r] = within(own + args.window_right + 1, tile.of.begin, tile.of.end);
    worker.slope[r] = 0;
    if (args.alibi_slopes.data != nullptr)
      worker.slope[r] = *args.alibi_slopes.template at<const float>(tile.of.index, tile.head(r));
    const T* query = args.q.template at<const T>(tile.of.entry, tile.row(r), tile.head(r));
    if (args.D == D) return query;
    copy(worker.query, query, args.D);
    return worker.query;
  }

  // Scores of a row as exponents of 2, of the block's first `count` keys.
  KERNELMINT_ALWAYS_INLINE void finish_scores(float* scores, const Tile& tile, const Worker& worker,
                                              int r, std::int64_t first_key, int count) const {
    for (int key = 0; key < count; key += kLanes) {
      const I32 ahead =
          splat(static_cast<std::int32_t>(tile.own_key(r) - first_key - key)) - lane_numbers();
      store(scores + key, finished_scores(args, load(scores + key), worker.slope[r], ahead));
    }
  }

  std::int64_t value_columns() const { return args.Dv; }

  const Args& args;
  const float scale_log2;
  const bool changes_scores;

 private:
  // A part's place. The rows before the first sequence are a part without queries; the rows after
  // the last belong to the last.
  Sequence find(std::int64_t s) const {
    const bool is_packed = args.cu_seqlens_q.data != nullptr;
    Sequence sequence{};
    if (s < sequences_) {
      static_cast<SequencePlace&>(sequence) = place_of(args, s);
      if (is_packed && s + 1 == sequences_) sequence.rows = args.Tq - sequence.first_row;
    } else {
      sequence.rows = within(*args.cu_seqlens_q.template at<const i32>(0), 0, args.Tq);
    }
    sequence.heads_at_once = within(B_r / larger(1, sequence.queries), 1, group_);
    sequence.head_blocks = ceil_div(group_, sequence.heads_at_once);
    sequence.queries_at_once = B_r / sequence.heads_at_once;
    return sequence;
  }

  KERNELMINT_ALWAYS_INLINE static void copy(T* to, const T* from, std::int64_t columns) {
    __builtin_memcpy(to, from, static_cast<std::size_t>(columns) * sizeof(T));
    __builtin_memset(static_cast<void*>(to + columns), 0,
                     static_cast<std::size_t>(D - columns) * sizeof(T));
  }

  // A row of no sequence.
  void clear(const Tile& tile, std::int64_t query) const {
    const std::int64_t row = tile.of.first_row + query;
    for (std::int64_t head = tile.first_head; head < tile.first_head + tile.heads; ++head) {
      __builtin_memset(args.o.template at<T>(tile.of.entry, row, head), 0,
                       static_cast<std::size_t>(args.Dv) * sizeof(T));
      if (args.lse.data != nullptr) *args.lse.template at<float>(tile.of.entry, head, row) = kNoKey;
    }
  }

  const std::int64_t sequences_, group_;  // query heads that share a key head
  const bool is_whole_;                   // keys and values lie as the products read them
  const std::int64_t* first_task_ = nullptr;
};

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::flash_prefill

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  static_assert(std::is_same_v<Isa, isa::KERNELMINT_ISA>, "one instruction set a translation unit");
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  if (args.Tq == 0 || args.H == 0) return {};
  flash_prefill::Prefill<Config> prefill(args);
  if (const LaunchResult wrong = prefill.check(); wrong.error != nullptr) return wrong;
  const Allocation counts =
      context.allocate(static_cast<std::size_t>(prefill.parts() + 1) * sizeof(std::int64_t));
  if (counts.error != nullptr) return {counts.error};
  prefill.count(static_cast<std::int64_t*>(counts.data));
  return attention::run_tasks(prefill, context);
}

}  // namespace kernelmint
