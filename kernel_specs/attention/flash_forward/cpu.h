// Attention forward on the CPU: FlashAttention-2's loops (arXiv:2307.08691, algorithm 1). A task is
// a block of B_r queries of one head, or, if a head has few queries, those of several heads that
// share keys; blocks of B_c keys and values pass by, the last first. Within a block the queries are
// taken in strips, whose scores stay in the first-level cache from the first product through the
// softmax to the second.
#pragma once

#include <type_traits>

#include "attention/cpu_hidden_values.h"
#include "attention/cpu_products.h"
#include "attention/cpu_softmax.h"
#include "attention/flash_forward/cpu_trace.h"
#include "cpu_scratch.h"
#include "dtypes.h"
#include "integers.h"
#include "launch.h"
#include "parallel.h"

namespace kernelmint::flash_forward {
inline namespace KERNELMINT_ISA {

using namespace kernelmint::attention;

template <class Config>
class Attention {
 public:
  using T = typename Config::dtype;
  using Args = typename Config::Args;
  static constexpr int D = Config::d_head;
  static constexpr int B_r = Config::B_r;
  static constexpr int B_c = Config::B_c;
  // Heads share a task up to so many rows: with more, packing weighs little, and it matters more
  // that there are tasks for all threads.
  static constexpr int kSharedRows = B_r < 64 ? B_r : 64;
  using ManyProducts = typename ProductsFor<T, D, B_r, B_c>::type;
  using FewProducts = DirectProducts<T, D, B_c>;
  static_assert(ManyProducts::kFewRows <= FewProducts::kStripRows, "they must fit");

  struct alignas(64) Worker {
    ManyProducts products;
    FewProducts few_products;
    RowStatistics<B_r> statistics;
    HiddenValues<T, D, B_c> hidden;
    std::int64_t seen[B_r];  // how many keys each row sees; never fewer than the row before it
  };

  explicit Attention(const Args& args)
      : args_(args),
        query_blocks_(ceil_div(args.Sq, B_r)),
        group_(args.H / args.Hk),
        heads_at_once_(larger(1, smaller(group_, kSharedRows / larger(1, args.Sq)))),
        head_blocks_(args.Hk * ceil_div(group_, heads_at_once_)),
        scale_log2_(args.scale * 0x1.715476p0f) {}  // log2(e)

  std::int64_t tasks() const { return query_blocks_ * args_.B * head_blocks_; }

  // Tasks of all heads for the last queries come first: under the causal mask they are the longest.
  void run(std::int64_t index, Worker& worker) const {
    const std::int64_t of_all_heads = args_.B * head_blocks_,
                       blocks_of_group = head_blocks_ / args_.Hk;
    Task task;
    task.batch = index % of_all_heads / head_blocks_;
    task.kv_head = index % head_blocks_ / blocks_of_group;
    const std::int64_t head_in_group = index % blocks_of_group * heads_at_once_;
    task.first_head = task.kv_head * group_ + head_in_group;
    task.heads = smaller(heads_at_once_, group_ - head_in_group);
    task.first_query = (query_blocks_ - 1 - index / of_all_heads) * B_r;
    task.rows = static_cast<int>(smaller((args_.Sq - task.first_query) * task.heads, B_r));
    if (task.rows <= ManyProducts::kFewRows) {
      run(task, worker, worker.few_products);
    } else {
      run(task, worker, worker.products);
    }
  }

 private:
  // Row r is query first_query + r / heads of head first_head + r % heads: in the queries' order,
  // so that under the causal mask, too, the last row sees most.
  struct Task {
    std::int64_t batch, kv_head, first_head, heads, first_query;
    int rows;

    std::int64_t head(int row) const { return first_head + row % heads; }
    std::int64_t query(int row) const { return first_query + row / heads; }
  };

  template <class Products>
  void run(const Task& task, Worker& worker, Products& products) const {
    products.begin();
    begin_rows(task, worker, products);
    const std::int64_t keys = worker.seen[task.rows - 1];
    for (std::int64_t block = ceil_div(keys, B_c); block-- > 0;) {
      const std::int64_t first_key = block * B_c;
      const int count = static_cast<int>(smaller(keys - first_key, B_c));
      const T* values = args_.v.template at<const T>(task.batch, first_key, task.kv_head);
      std::int64_t value_stride = args_.v.stride[1];
      const bool hides =
          Products::kSplits || (Config::causal && first_key + count > worker.seen[0]);
      if (hides) values = worker.hidden.find(values, value_stride, count, value_stride);
      products.load_keys_values(args_.k.template at<const T>(task.batch, first_key, task.kv_head),
                                args_.k.stride[1], values, value_stride, count);
      const Trace<Config, Task> trace(args_, task, block);
      if constexpr (Traced<Config>) trace.inputs(products, count);
      for (int first = 0; first < task.rows; first += Products::kStripRows) {
        const int strip = static_cast<int>(smaller(task.rows - first, Products::kStripRows));
        const auto visible = [&](int i) __attribute__((always_inline)) {
          return static_cast<int>(larger(0, smaller(worker.seen[first + i] - first_key, count)));
        };
        const int used = Products::round_up(visible(strip - 1));
        if (used == 0) continue;
        products.multiply_queries_keys(first, strip, used);
        if constexpr (Traced<Config>) trace.scores(products, first, strip, used);
        online_softmax(products, worker.statistics, products.out, first, strip, used, scale_log2_,
                       visible);
        if constexpr (Traced<Config>) trace.probabilities(products, first, strip, used);
        products.multiply_probabilities_values(first, strip, used);
        if (!hides || worker.hidden.num_keys == 0) continue;
        for (int i = 0; i < strip; ++i) {
          worker.hidden.add(products, i, 0, visible(i), products.out[first + i]);
        }
      }
      if constexpr (Traced<Config>) trace.results(products, worker.statistics, scale_log2_);
    }
    products.end();
    finish_rows(task, worker, products);
  }

  // Loads the queries and clears what is known of their rows.
  template <class Products>
  void begin_rows(const Task& task, Worker& worker, Products& products) const {
    worker.statistics.clear(task.rows);
    for (int r = 0; r < task.rows; ++r) {
      products.load_query(r, args_.q.template at<const T>(task.batch, task.query(r), task.head(r)));
      for (int d = 0; d < D; d += kLanes) store(&products.out[r][d], F32{});
      // Under the causal mask the last query's own key is the last one.
      worker.seen[r] =
          Config::causal ? larger(0, task.query(r) + args_.Sk - args_.Sq + 1) : args_.Sk;
    }
  }

  // Divides by the sums and writes o and lse. A row that saw no key: o = 0, lse = -inf.
  template <class Products>
  void finish_rows(const Task& task, const Worker& worker, const Products& products) const {
    for (int r = 0; r < task.rows; ++r) {
      const float sum = reduce_add(load(worker.statistics.sum[r]));
      const F32 divisor = splat(sum == 0 ? 1 : sum);
      T* row = args_.o.template at<T>(task.batch, task.query(r), task.head(r));
      for (int d = 0; d < D; d += kLanes) {
        store(row + d, load(&products.out[r][d]) / divisor);
      }
      if (args_.lse.data != nullptr) {
        *args_.lse.template at<float>(task.batch, task.head(r), task.query(r)) =
            sum == 0 ? kNoKey : worker.statistics.maximum[r] * kLn2 + __builtin_logf(sum);
      }
    }
  }

  KERNELMINT_ALWAYS_INLINE static std::int64_t smaller(std::int64_t a, std::int64_t b) {
    return a < b ? a : b;
  }
  KERNELMINT_ALWAYS_INLINE static std::int64_t larger(std::int64_t a, std::int64_t b) {
    return a < b ? b : a;
  }

  const Args& args_;
  std::int64_t query_blocks_;
  std::int64_t group_;          // query heads that share a key head
  std::int64_t heads_at_once_;  // of a group, in one task
  std::int64_t head_blocks_;    // tasks that cover all heads of one batch entry
  float scale_log2_;
};

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::flash_forward

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* args, const LaunchContext& context) {
  static_assert(std::is_same_v<Isa, isa::KERNELMINT_ISA>, "one instruction set a translation unit");
  using Attention = flash_forward::Attention<Config>;
  using Worker = typename Attention::Worker;
  const Attention attention(*static_cast<const typename Config::Args*>(args));
  const std::int64_t tasks = attention.tasks();
  const int threads = tasks < context.num_threads ? static_cast<int>(tasks) : context.num_threads;
  auto* workers =
      reinterpret_cast<Worker*>(cpu::Scratch::of_thread().reserve(sizeof(Worker) * threads));
  if (workers == nullptr && threads > 0) return {"no memory for the tiles of that many threads"};
  parallel_for(tasks, threads,
               [&](std::int64_t index, int worker) { attention.run(index, workers[worker]); });
  return {};
}

}  // namespace kernelmint
