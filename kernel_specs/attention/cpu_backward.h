// Attention backward on the CPU, by FlashAttention-2's equations (arXiv:2307.08691, algorithm 2): P
// = exp(S - lse), dP = dO V^T, D = rowsum(dO o), dS = P (dP - D); dV = P^T dO, dK = dS^T Q, dQ = dS
// K. All three gradients are summed in f32. A task is a part of the keys of one head of one
// sequence, and a part of the queries of the heads that share it; step s runs the tasks whose
// parts' numbers add up to s. So no two tasks at a time add to the same sum, and a sum is made of
// its blocks in their order, however many parts there are and whichever threads run them: the
// results are always the same.
//
// A `Call` says where sequences lie and which keys a row sees: EqualLengths here, and
// cpu_prefill_backward.h's AnyLengths.
#pragma once

#include <cmath>
#include <type_traits>

#include "attention/cpu_differentiate.h"
#include "attention/cpu_dropout.h"
#include "attention/cpu_gradients.h"
#include "attention/cpu_hidden_rows.h"
#include "attention/cpu_some.h"
#include "attention/slopes.h"
#include "cpu_convert.h"
#include "cpu_scratch.h"
#include "dtypes.h"
#include "integers.h"
#include "launch.h"
#include "parallel.h"

namespace kernelmint::attention_backward {
inline namespace KERNELMINT_ISA {

// Where the queries and keys of a sequence are.
struct Sequence {
  std::int64_t index;
  std::int64_t entry, first_row, queries;  // within q: a batch entry and its rows
  std::int64_t key_entry, first_key, keys;
  std::int64_t own_key;  // the first query's own key, counted from `first_key`
};

// The keys of a block that a row sees.
struct Seen {
  int begin, end;
};

// The trace of kernels that have none.
struct NoTrace {
  NoTrace(const auto&...) {}
  void inputs(const auto&...) const {}
  void scores(const auto&...) const {}
  void gradients(const auto&...) const {}
};

// Sequences of equal lengths, and a causal mask that is aligned bottom-right or none.
template <class Arguments, int D, bool Causal>
struct EqualLengths {
  using Args = Arguments;
  using Trace = NoTrace;
  const Args& args;

  std::int64_t sequences() const { return args.B; }
  std::int64_t batch() const { return args.B; }
  std::int64_t rows() const { return args.Sq; }
  static constexpr std::int64_t columns() { return D; }
  static constexpr std::int64_t value_columns() { return D; }
  static constexpr bool kPads = false;  // tensors have D columns, which are read where they lie
  float scale() const { return args.scale; }

  Sequence find(std::int64_t index) const {
    return {.index = index,
            .entry = index,
            .first_row = 0,
            .queries = args.Sq,
            .key_entry = index,
            .first_key = 0,
            .keys = args.Sk,
            .own_key = args.Sk - args.Sq};
  }
  // The first query that sees the key, and the one after the last.
  std::int64_t first_query(const Sequence& of, std::int64_t key) const {
    return Causal ? larger(0, key - of.own_key) : 0;
  }
  std::int64_t end_query(const Sequence& of, std::int64_t) const { return of.queries; }
  // The keys of the block [first, first + count) that a query sees.
  KERNELMINT_ALWAYS_INLINE Seen seen(const Sequence& of, std::int64_t query, std::int64_t first,
                                     int count) const {
    if (!Causal) return {0, count};
    const std::int64_t end = query + of.own_key + 1 - first;
    return {0, static_cast<int>(larger(0, smaller(end, count)))};
  }
  KERNELMINT_ALWAYS_INLINE auto row(const Sequence&, std::int64_t, std::int64_t, std::int64_t,
                                    Seen seen, float lse, float sum, F32*) const {
    return [factor = splat(args.scale), seen, lse, sum](F32 score, F32 dp, int key)
               __attribute__((always_inline)) {
                 const F32 p = exp(fma(score, factor, splat(-lse)));
                 return seen_from_front(p, p * (dp - splat(sum)), seen.end - key);
               };
  }
  // Does nothing: each row of each tensor belongs to a sequence.
  void clear_rest(int) const {}
  void sum_sinks(const float*, int) const {}
};

template <class Call, class Products, class T, int D, int B_r, int B_c>
class Backward {
 public:
  static constexpr bool kDropsOut = attention::DropsOut<typename Call::Args>;
  static constexpr bool kGivesSlopes = attention::GivesSlopes<typename Call::Args>;
  static constexpr int kPartRows = 256;     // queries or keys that are worth a part
  static constexpr int kTasksOfThread = 4;  // so that threads of different speed end together
  static constexpr std::int64_t kManySums = 1 << 20;  // floats of the units at one time

  struct alignas(64) Worker : attention::BitsOf<typename Call::Args, B_r, B_c> {
    Products products;
    HiddenRows<T, B_r, B_c> hidden;
    alignas(64) T padded[2][Call::kPads ? larger(B_r, B_c) : 1][Call::kPads ? D : kLanes];
    F32 of_slope;  // a step's sum of dS times the distance, if the call gives slopes' gradients
  };

  Backward(const Call& call, int threads)
      : call_(call),
        args_(call.args),
        group_(args_.H / args_.Hk),
        row_blocks_(ceil_div(call.rows(), std::int64_t{B_r})),
        threads_(threads) {
    double work = 0;
    for (std::int64_t s = 0; s < call_.sequences(); ++s) work += work_of(call_.find(s));
    work_ = work * static_cast<double>(args_.Hk);
    for (std::int64_t first = 0; first < all_units();) {
      const Units units = from(first);
      most_units_ = larger(most_units_, units.count);
      most_sums_ = larger(most_sums_, units.sums);
      first += units.count;
    }
  }

  std::size_t bytes() const {
    return sizeof(float) * (row_sums() + most_sums_) + sizeof(Unit) * most_units_ +
           sizeof(std::int64_t) * (most_units_ + 1);
  }

  void run(void* memory, Worker* workers) {
    row_sums_ = static_cast<float*>(memory);
    sums_ = row_sums_ + row_sums();
    units_ = reinterpret_cast<Unit*>(sums_ + most_sums_);
    first_task_ = reinterpret_cast<std::int64_t*>(units_ + most_units_);
    call_.clear_rest(threads_);
    parallel_for(call_.batch() * args_.H * row_blocks_, threads_,
                 [&](std::int64_t index, int) { sum_rows(index); });
    call_.sum_sinks(row_sums_, threads_);
    for (std::int64_t first = 0; first < all_units();) {
      const std::int64_t count = begin_units(first);
      run_units(count, workers);
      first += count;
    }
  }

 private:
  // A head of keys of one sequence, with the heads of queries that share it.
  struct Unit {
    Sequence of;
    std::int64_t kv_head, query_blocks = 0, key_blocks = 0, parts = 1;
    float *dq = nullptr, *dk = nullptr,
          *dv = nullptr;  // [group, blocks of queries, B_r, D]; [blocks of keys, B_c D as Products]
    float* slopes = nullptr;  // [group, blocks of queries]: sums of dS times the distance
  };
  struct Units {
    std::int64_t count, sums;
  };

  std::int64_t all_units() const { return call_.sequences() * args_.Hk; }
  std::int64_t row_sums() const {
    return round_up(call_.batch() * args_.H * call_.rows(), std::int64_t{16});
  }
  static double work_of(const Sequence& of) {
    return static_cast<double>(of.queries) * static_cast<double>(of.keys);
  }

  Unit unit(std::int64_t index) const {
    Unit made{.of = call_.find(index / args_.Hk), .kv_head = index % args_.Hk};
    made.query_blocks = ceil_div(made.of.queries, std::int64_t{B_r});
    made.key_blocks = ceil_div(made.of.keys, std::int64_t{B_c});
    const double share = work_ == 0 ? 0 : work_of(made.of) / work_;
    made.parts =
        larger(1, smaller(smaller(made.of.queries, made.of.keys) / kPartRows,
                          static_cast<std::int64_t>(std::ceil(kTasksOfThread * threads_ * share))));
    return made;
  }
  std::int64_t sums_of(const Unit& of) const {
    return (group_ * of.query_blocks * B_r + 2 * of.key_blocks * B_c) * D +
           (kGivesSlopes ? round_up(group_ * of.query_blocks, std::int64_t{16}) : 0);
  }

  // How many units are computed at one time: enough for all threads, and for a step to be long.
  Units from(std::int64_t first) const {
    Units units{0, 0};
    while (first + units.count < all_units() &&
           (units.count < kTasksOfThread * threads_ || units.sums < kManySums)) {
      units.sums += sums_of(unit(first + units.count));
      ++units.count;
    }
    return units;
  }

  std::int64_t begin_units(std::int64_t first) {
    const std::int64_t count = from(first).count;
    float* sums = sums_;
    for (std::int64_t i = 0; i < count; ++i) {
      Unit made = unit(first + i);
      made.dq = sums;
      made.dk = made.dq + group_ * made.query_blocks * B_r * D;
      made.dv = made.dk + made.key_blocks * B_c * D;
      made.slopes = made.dv + made.key_blocks * B_c * D;
      sums += sums_of(made);
      units_[i] = made;
    }
    return count;
  }

  void run_units(std::int64_t count, Worker* workers) {
    std::int64_t most_parts = 1;
    for (std::int64_t i = 0; i < count; ++i) most_parts = larger(most_parts, units_[i].parts);
    for (std::int64_t step = 0; step < 2 * most_parts - 1; ++step) {
      const auto first_part = [&](const Unit& of) { return larger(0, step - of.parts + 1); };
      first_task_[0] = 0;
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t end = smaller(step, units_[i].parts - 1) + 1;
        first_task_[i + 1] = first_task_[i] + larger(0, end - first_part(units_[i]));
      }
      parallel_for(first_task_[count], threads_, [&](std::int64_t index, int worker) {
        std::int64_t i = 0, after = count;
        while (after - i > 1) {
          const std::int64_t middle = (i + after) / 2;
          (first_task_[middle] <= index ? i : after) = middle;
        }
        const std::int64_t key_part = first_part(units_[i]) + index - first_task_[i];
        run(units_[i], key_part, step - key_part, workers[worker]);
      });
    }
    if constexpr (kGivesSlopes) {
      for (std::int64_t i = 0; i < count; ++i) write_slopes(units_[i]);
    }
  }

  void write_slopes(const Unit& unit) const {
    for (std::int64_t in_group = 0; in_group < group_; ++in_group) {
      float sum = 0;
      for (std::int64_t block = 0; block < unit.query_blocks; ++block)
        sum += unit.slopes[in_group * unit.query_blocks + block];
      *args_.dalibi_slopes.template at<float>(unit.of.index, unit.kv_head * group_ + in_group) =
          -sum;
    }
  }

  // The sums D of a block of rows.
  void sum_rows(std::int64_t index) const {
    const std::int64_t block = index % row_blocks_, head = index / row_blocks_ % args_.H,
                       entry = index / row_blocks_ / args_.H;
    const std::int64_t end = smaller(call_.rows(), (block + 1) * B_r);
    for (std::int64_t row = block * B_r; row < end; ++row) {
      const T* gradient = args_.dout.template at<const T>(entry, row, head);
      const T* out = args_.o.template at<const T>(entry, row, head);
      F32 sum{};
      if constexpr (!Call::kPads) {
        for (int d = 0; d < D; d += kLanes) sum = fma(load(gradient + d), load(out + d), sum);
      } else {
        for (std::int64_t d = 0, left = call_.value_columns(); left > 0; d += kLanes) {
          sum = fma(load_some(gradient + d, left), load_some(out + d, left), sum);
          left -= kLanes;
        }
      }
      row_sums_[index / row_blocks_ * call_.rows() + row] = reduce_add(sum);
    }
  }

  void run(const Unit& unit, std::int64_t key_part, std::int64_t query_part, Worker& worker) const {
    const Sequence& of = unit.of;
    const std::int64_t first_query_block = unit.query_blocks * query_part / unit.parts,
                       query_end = unit.query_blocks * (query_part + 1) / unit.parts,
                       first_key_block = unit.key_blocks * key_part / unit.parts,
                       key_end = unit.key_blocks * (key_part + 1) / unit.parts;
    const auto dq_of = [&](std::int64_t in_group, std::int64_t block) {
      return unit.dq + (in_group * unit.query_blocks + block) * B_r * D;
    };
    const auto of_key_block = [&](float* sums, std::int64_t block) {
      return sums + block * B_c * D;
    };
    if (key_part == 0) {
      for (std::int64_t in_group = 0; in_group < group_; ++in_group) {
        clear(dq_of(in_group, first_query_block), (query_end - first_query_block) * B_r);
        if constexpr (kGivesSlopes) {
          for (std::int64_t block = first_query_block; block < query_end; ++block)
            unit.slopes[in_group * unit.query_blocks + block] = 0;
        }
      }
    }
    if (query_part == 0) {
      clear(of_key_block(unit.dk, first_key_block), (key_end - first_key_block) * B_c);
      clear(of_key_block(unit.dv, first_key_block), (key_end - first_key_block) * B_c);
    }
    Products& products = worker.products;
    products.begin();
    for (std::int64_t key_block = first_key_block; key_block < key_end; ++key_block) {
      const std::int64_t first_key = key_block * B_c;
      const int keys = static_cast<int>(smaller(of.keys - first_key, B_c));
      const std::int64_t first_block =
          larger(first_query_block, call_.first_query(of, first_key) / B_r);
      const std::int64_t end_block = smaller(
          query_end, ceil_div(call_.end_query(of, first_key + keys - 1), std::int64_t{B_r}));
      if (first_block >= end_block) continue;
      const Matrix k = rows_of(args_.k, of.key_entry, of.first_key + first_key, unit.kv_head, keys,
                               call_.columns(), worker.padded[0]);
      const Matrix v = rows_of(args_.v, of.key_entry, of.first_key + first_key, unit.kv_head, keys,
                               call_.value_columns(), worker.padded[1]);
      products.load_keys_values(k.first, k.stride, v.first, v.stride, keys);
      // Blocks of queries between the first and the last see all keys if these do.
      const std::int64_t last_query = smaller(end_block * B_r, of.queries) - 1;
      worker.hidden.keys.count = 0;
      if (call_.seen(of, first_block * B_r, first_key, keys).end < keys ||
          call_.seen(of, last_query, first_key, keys).begin > 0)
        worker.hidden.keys.find(
            args_.k.template at<const T>(of.key_entry, of.first_key + first_key, unit.kv_head),
            args_.k.stride[1], keys, call_.columns());
      for (std::int64_t block = first_block; block < end_block; ++block) {
        for (std::int64_t in_group = 0; in_group < group_; ++in_group) {
          step(worker, unit, unit.kv_head * group_ + in_group, block, first_key, keys,
               dq_of(in_group, block), of_key_block(unit.dk, key_block),
               of_key_block(unit.dv, key_block));
        }
      }
    }
    if (key_part == unit.parts - 1) {
      for (std::int64_t in_group = 0; in_group < group_; ++in_group) {
        for (std::int64_t block = first_query_block; block < query_end; ++block) {
          write_queries(of, unit.kv_head * group_ + in_group, block, dq_of(in_group, block));
        }
      }
    }
    if (query_part == unit.parts - 1) {
      for (std::int64_t block = first_key_block; block < key_end; ++block) {
        const std::int64_t first_key = block * B_c, row = of.first_key + first_key;
        const int keys = static_cast<int>(smaller(of.keys - first_key, B_c));
        Products::write(of_key_block(unit.dk, block), call_.scale(),
                        args_.dk.template at<T>(of.key_entry, row, unit.kv_head),
                        args_.dk.stride[1], keys, call_.columns());
        Products::write(of_key_block(unit.dv, block), 1,
                        args_.dv.template at<T>(of.key_entry, row, unit.kv_head),
                        args_.dv.stride[1], keys, call_.value_columns());
      }
    }
    products.end();
  }

  // The pairs of queries and keys of one block of each.
  void step(Worker& worker, const Unit& unit, std::int64_t head, std::int64_t block,
            std::int64_t first_key, int keys, float* dq, float* dk, float* dv) const {
    const Sequence& of = unit.of;
    Products& products = worker.products;
    const std::int64_t first_query = block * B_r, first_row = of.first_row + first_query;
    const int rows = static_cast<int>(smaller(of.queries - first_query, B_r));
    const auto seen = [&](int row) __attribute__((always_inline)) {
      return call_.seen(of, first_query + row, first_key, keys);
    };
    const int used = round_up(seen(rows - 1).end, Products::kKeys);
    if (used == 0 || seen(0).begin == keys) return;
    const Matrix q =
        rows_of(args_.q, of.entry, first_row, head, rows, call_.columns(), worker.padded[0]);
    const Matrix gradients = rows_of(args_.dout, of.entry, first_row, head, rows,
                                     call_.value_columns(), worker.padded[1]);
    products.load_queries(q.first, q.stride, gradients.first, gradients.stride, rows);
    const typename Call::Trace trace(args_, of.entry, head, block, first_key, rows, keys, used);
    products.multiply(rows, used);
    trace.scores(products);
    const float* lse = args_.lse.template at<const float>(of.entry, head, first_row);
    const float* sums = row_sums_ + (of.entry * args_.H + head) * call_.rows() + first_row;
    trace.inputs(products, lse, sums, dq);
    if constexpr (kGivesSlopes) worker.of_slope = F32{};
    // Rows after the last, which some products have: they see no key.
    if constexpr (kDropsOut) {
      draw_bits(worker, of, head, first_query, call_.padding(of) + first_key, rows, keys);
      products.differentiate(rows, used, [&](int row) __attribute__((always_inline)) {
        return dropping(worker, row,
                        call_.row(of, head, first_query + row, first_key,
                                  row < rows ? seen(row) : Seen{0, 0}, row < rows ? lse[row] : 0.0f,
                                  row < rows ? sums[row] : 0.0f, &worker.of_slope));
      });
    } else {
      products.differentiate(rows, used, [&](int row) __attribute__((always_inline)) {
        return call_.row(of, head, first_query + row, first_key,
                         row < rows ? seen(row) : Seen{0, 0}, row < rows ? lse[row] : 0.0f,
                         row < rows ? sums[row] : 0.0f, &worker.of_slope);
      });
    }
    if constexpr (kGivesSlopes) {
      const std::int64_t in_group = head - unit.kv_head * group_;
      unit.slopes[in_group * unit.query_blocks + block] += reduce_add(worker.of_slope);
    }
    const bool hides = seen(0).end < keys || seen(rows - 1).begin > 0;
    const bool repairs = hides && find_hidden(worker, of, head, first_row, rows);
    if (repairs) worker.hidden.hide(products);
    products.accumulate(rows, used, dq, dk, dv);
    if (repairs) worker.hidden.template add<D>(products, rows, seen, dq, dk, dv);
    trace.gradients(products, dq, dk, dv);
  }

  // Returns whether values of the step are not finite.
  bool find_hidden(Worker& worker, const Sequence& of, std::int64_t head, std::int64_t first_row,
                   int rows) const {
    worker.hidden.queries.find(args_.q.template at<const T>(of.entry, first_row, head),
                               args_.q.stride[1], rows, call_.columns());
    worker.hidden.out_gradients.find(args_.dout.template at<const T>(of.entry, first_row, head),
                                     args_.dout.stride[1], rows, call_.value_columns());
    return worker.hidden.are_any();
  }

  // Draws the random bits of a block of queries of a head, and a block of keys.
  void draw_bits(Worker& worker, const Sequence& of, std::int64_t head, std::int64_t first_query,
                 std::int64_t first_key, int rows, int keys) const {
    const attention::Dropout dropout(args_);
    worker.begin_bits(first_key);
    for (int row = 0; row < rows; ++row) {
      if (row / 8 % 2 == 1) continue;  // drawn with the row of the same units
      worker.draw(dropout.of(of.index * args_.H + head), first_query + row, first_key, keys, row,
                  row + 8);
    }
  }

  // A function that differentiates a row of a block, as `differentiate` without dropout: dP and
  // dV's P are those of the probabilities that are kept.
  template <class Row>
  KERNELMINT_ALWAYS_INLINE auto dropping(const Worker& worker, int row, Row differentiate) const {
    return [&worker, row, differentiate, threshold = attention::drop_threshold(args_.dropout_p),
            scale = attention::keep_scale(args_.dropout_p)](F32 score, F32 dp, int key)
               __attribute__((always_inline)) {
                 dp = worker.kept(row, key, threshold, dp * scale);
                 const Differentiated all = differentiate(score, dp, key);
                 return Differentiated{worker.kept(row, key, threshold, all.p * scale), all.ds};
               };
  }

  void write_queries(const Sequence& of, std::int64_t head, std::int64_t block,
                     const float* sums) const {
    const std::int64_t first_query = block * B_r, rows = smaller(of.queries - first_query, B_r);
    for (std::int64_t r = 0; r < rows; ++r) {
      T* to = args_.dq.template at<T>(of.entry, of.first_row + first_query + r, head);
      for (int d = 0; d < call_.columns(); d += kLanes) {
        store_some(to + d, load(sums + r * D + d) * call_.scale(), call_.columns() - d);
      }
    }
  }

  struct Matrix {
    const T* first;
    std::int64_t stride;
  };
  // Rows of a tensor, of D columns: where they lie, or a copy with zeros after theirs.
  template <class View, class Padded>
  KERNELMINT_ALWAYS_INLINE Matrix rows_of(const View& of, std::int64_t entry, std::int64_t row,
                                          std::int64_t head, int count, std::int64_t columns,
                                          Padded& padded) const {
    const T* first = of.template at<const T>(entry, row, head);
    if constexpr (Call::kPads) {
      if (columns != D) {
        for (int i = 0; i < count; ++i) {
          __builtin_memcpy(padded[i], first + i * of.stride[1],
                           static_cast<std::size_t>(columns) * sizeof(T));
          __builtin_memset(static_cast<void*>(padded[i] + columns), 0,
                           static_cast<std::size_t>(D - columns) * sizeof(T));
        }
        return {padded[0], D};
      }
    }
    return {first, of.stride[1]};
  }

  static void clear(float* sums, std::int64_t rows) {
    __builtin_memset(sums, 0, static_cast<std::size_t>(rows) * D * sizeof(float));
  }

  const Call call_;
  const typename Call::Args& args_;
  std::int64_t group_;       // query heads that share a key head
  std::int64_t row_blocks_;  // row blocks of all rows of a batch entry
  int threads_;
  double work_ = 0;  // pairs of queries and keys of all units
  std::int64_t most_units_ = 0, most_sums_ = 0;
  float* row_sums_ = nullptr;  // D of each row, as lse lies
  float* sums_ = nullptr;
  Unit* units_ = nullptr;
  std::int64_t* first_task_ = nullptr;  // the first task of each unit in a step
};

// Runs a call on the products that suit dtype and processor.
template <class T, int D, int B_r, int B_c, class Call>
LaunchResult run_backward(const Call& call, const LaunchContext& context) {
  return with_products<T, D, B_r, B_c>([&]<class Products>() -> LaunchResult {
    using Worker = typename Backward<Call, Products, T, D, B_r, B_c>::Worker;
    const int threads = context.num_threads;
    Backward<Call, Products, T, D, B_r, B_c> backward(call, threads);
    const Allocation memory = context.allocate(backward.bytes());
    if (memory.error != nullptr) return {memory.error};
    auto* workers =
        reinterpret_cast<Worker*>(cpu::Scratch::of_thread().reserve(sizeof(Worker) * threads));
    if (workers == nullptr) return {"no memory for the tiles of that many threads"};
    backward.run(memory.data, workers);
    return {};
  });
}

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::attention_backward
