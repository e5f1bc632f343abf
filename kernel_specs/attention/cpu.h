// Attention of a tile of rows on the CPU: FlashAttention-2's loops (arXiv:2307.08691, algorithm 1).
// Blocks of B_c keys and values pass by, the last that a row of the tile sees first. Within a block
// the rows are taken in strips, whose scores stay in the first-level cache from the first product
// through the softmax to the second.
#pragma once

#include "attention/cpu_dropout.h"
#include "attention/cpu_hidden_values.h"
#include "attention/cpu_products.h"
#include "attention/cpu_scores.h"
#include "attention/cpu_softmax.h"
#include "attention/cpu_some.h"
#include "cpu_scratch.h"
#include "integers.h"
#include "launch.h"
#include "parallel.h"

namespace kernelmint::attention {
inline namespace KERNELMINT_ISA {

// A thread's memory.
template <class Config>
struct alignas(64) TileWorker : BitsOf<typename Config::Args, Config::B_r, Config::B_c> {
  using T = typename Config::dtype;
  static constexpr int D = Config::d_head, B_r = Config::B_r, B_c = Config::B_c;
  using ManyProducts = typename ProductsFor<T, D, B_r, B_c>::type;
  using FewProducts = DirectProducts<T, D, B_c>;
  static_assert(ManyProducts::kFewRows <= FewProducts::kStripRows, "they must fit");

  ManyProducts products;
  FewProducts few_products;
  RowStatistics<B_r> statistics;
  HiddenValues<T, D, B_c> hidden;
  std::int64_t begin[B_r], end[B_r];  // the keys that each row sees; both rise
};

// Keys or values of a block.
template <class T>
struct BlockRows {
  const T* first;
  std::int64_t stride;
};

// The trace of kernels that have none.
struct NoTrace {
  NoTrace(const auto&...) {}
  void inputs(const auto&...) const {}
  void scores(const auto&...) const {}
  void probabilities(const auto&...) const {}
  void results(const auto&...) const {}
};

// Divides a row by its sum, to which a sink adds, and writes o and lse. A row that saw no key:
// o = 0, lse = -inf.
template <class Family>
KERNELMINT_ALWAYS_INLINE void finish_row(const Family& family, const typename Family::Tile& tile,
                                         int r, float maximum, float sum, const float* out) {
  using T = typename Family::T;
  const auto& args = family.args;
  const std::int64_t entry = tile.entry(), head = tile.head(r), row = tile.row(r);
  float factor = 1;
  if constexpr (requires { args.s_aux; }) {
    if (args.s_aux.data != nullptr) {
      const float sink = load_some(args.s_aux.template at<const T>(head), 1)[0] * kLog2E;
      const float greatest = sink > maximum ? sink : maximum;
      const float shift = greatest == kNoKey ? 0 : greatest;
      factor = exp2(splat(maximum - shift))[0];
      sum = sum * factor + exp2(splat(sink - shift))[0];
      maximum = greatest;
    }
  }
  if constexpr (DropsOut<typename Family::Args>) factor *= keep_scale(args.dropout_p);
  const F32 divisor = splat(sum == 0 ? 1 : sum);
  T* o = args.o.template at<T>(entry, row, head);
  const std::int64_t columns = family.value_columns();
  for (std::int64_t d = 0; d < columns; d += kLanes)
    store_some(o + d, load(out + d) * factor / divisor, columns - d);
  if (args.lse.data != nullptr)
    *args.lse.template at<float>(entry, head, row) =
        sum == 0 ? kNoKey : maximum * kLn2 + __builtin_logf(sum);
}

// Draws the random bits of a tile's rows at a block's first `count` keys, as far as the rows see.
template <class Family>
void draw_bits(const Family& family, const typename Family::Tile& tile, std::int64_t first_key,
               int count, typename Family::Worker& worker) {
  const Dropout dropout(family.args);
  const std::int64_t apart = 8 * tile.heads;  // rows of one head whose queries share units
  worker.begin_bits(first_key);
  for (int r = 0; r < tile.rows; ++r) {
    const bool is_upper = tile.query(r) / 8 % 2 == 1;
    if (is_upper && r >= apart) continue;  // drawn with the other
    const auto other = static_cast<int>(!is_upper && r + apart < tile.rows ? r + apart : -1);
    const std::int64_t seen = worker.end[other < 0 ? r : other] - first_key;
    worker.draw(dropout.of(tile.of.index * family.args.H + tile.head(r)), tile.query(r), first_key,
                static_cast<int>(smaller(seen, count)), r, other);
  }
}

// A tile. A family's class says where queries, keys and values lie, which keys a row sees, and, if
// kFinishesScores, how scores change beside their scale.
template <class Family, class Products>
void attend(const Family& family, const typename Family::Tile& tile,
            typename Family::Worker& worker, Products& products) {
  constexpr int B_c = Family::B_c;
  products.begin();
  worker.statistics.clear(tile.rows);
  for (int r = 0; r < tile.rows; ++r) {
    products.load_query(r, family.begin_row(tile, r, worker));
    for (int d = 0; d < Family::D; d += kLanes) store(&products.out[r][d], F32{});
  }
  const std::int64_t begin = worker.begin[0], end = worker.end[tile.rows - 1];
  for (std::int64_t block = ceil_div(larger(0, end - begin), B_c); block-- > 0;) {
    const std::int64_t first_key = begin + block * B_c;
    const int count = static_cast<int>(smaller(end - first_key, B_c));
    const auto keys = family.template rows_of<false>(tile, first_key, count, worker);
    auto values = family.template rows_of<true>(tile, first_key, count, worker);
    // Some row sees some of the block and not all, or values are split.
    const bool hides = Products::kSplits || first_key + count > worker.end[0] ||
                       first_key < worker.begin[tile.rows - 1];
    if (hides) values.first = worker.hidden.find(values.first, values.stride, count, values.stride);
    products.load_keys_values(keys.first, keys.stride, values.first, values.stride, count);
    const typename Family::Trace trace(family.args, tile, block);
    trace.inputs(products, count);
    if constexpr (DropsOut<typename Family::Args>)
      draw_bits(family, tile, first_key, count, worker);
    for (int first = 0; first < tile.rows; first += Products::kStripRows) {
      const int strip = static_cast<int>(smaller(tile.rows - first, Products::kStripRows));
      const auto in_block = [&](std::int64_t key) __attribute__((always_inline)) {
        return static_cast<int>(larger(0, smaller(key - first_key, count)));
      };
      const auto seen_from = [&](int i) __attribute__((always_inline)) {
        return in_block(worker.begin[first + i]);
      };
      const auto seen_to = [&](int i) __attribute__((always_inline)) {
        return in_block(worker.end[first + i]);
      };
      const int used = Products::round_up(seen_to(strip - 1));
      if (used == 0 || seen_from(0) == count) continue;
      products.multiply_queries_keys(first, strip, used);
      trace.scores(products, first, strip, static_cast<int>(smaller(used, count)));
      float scale_log2 = family.scale_log2;
      if constexpr (Family::kFinishesScores) {
        // The softmax scales, and hides keys at the end; more than that is done here.
        if (family.changes_scores || seen_from(strip - 1) > 0) {
          for (int i = 0; i < strip; ++i)
            family.finish_scores(products.scores[i], tile, worker, first + i, first_key,
                                 seen_to(i));
          scale_log2 = 1;
        }
      }
      if constexpr (DropsOut<typename Family::Args>) {
        DroppingProducts<Products, typename Family::Worker> dropping{
            products, products.scores, worker, first, drop_threshold(family.args.dropout_p)};
        online_softmax(dropping, worker.statistics, products.out, first, strip, used, scale_log2,
                       seen_to);
      } else {
        online_softmax(products, worker.statistics, products.out, first, strip, used, scale_log2,
                       seen_to);
      }
      trace.probabilities(products, first, strip, used);
      products.multiply_probabilities_values(first, strip, used);
      if (!hides || worker.hidden.num_keys == 0) continue;
      for (int i = 0; i < strip; ++i)
        worker.hidden.add(products, i, seen_from(i), seen_to(i), products.out[first + i]);
    }
    trace.results(products, worker.statistics, family.scale_log2);
  }
  products.end();
  for (int r = 0; r < tile.rows; ++r)
    finish_row(family, tile, r, worker.statistics.maximum[r],
               reduce_add(load(worker.statistics.sum[r])), products.out[r]);
}

// A tile, by the products that suit its number of rows.
template <class Family>
void attend(const Family& family, const typename Family::Tile& tile,
            typename Family::Worker& worker) {
  if (tile.rows <= Family::Worker::ManyProducts::kFewRows) {
    attend(family, tile, worker, worker.few_products);
  } else {
    attend(family, tile, worker, worker.products);
  }
}

// All tasks of a family, whose class has the number of them and runs one.
template <class Family>
LaunchResult run_tasks(const Family& family, const LaunchContext& context) {
  using Worker = typename Family::Worker;
  const std::int64_t tasks = family.tasks();
  const int threads = static_cast<int>(smaller(tasks, context.num_threads));
  auto* workers =
      reinterpret_cast<Worker*>(cpu::Scratch::of_thread().reserve(sizeof(Worker) * threads));
  if (workers == nullptr && threads > 0) return {"no memory for the tiles of that many threads"};
  parallel_for(tasks, threads,
               [&](std::int64_t index, int worker) { family.run(index, workers[worker]); });
  return {};
}

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::attention
