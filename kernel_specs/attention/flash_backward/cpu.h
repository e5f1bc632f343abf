// Attention backward on the CPU, by FlashAttention-2's equations (arXiv:2307.08691, algorithm 2):
// P = exp(S - lse), dP = dO V^T, D = rowsum(dO o), dS = P (dP - D); dV = P^T dO, dK = dS^T Q,
// dQ = dS K. All three gradients are summed in f32. A task is a part of the keys of one head, and a
// part of the queries of the heads that share it; in step s run those whose parts' numbers add up
// to s. So no two tasks at a time add to the same sum, and a sum is made of its blocks in their
// order, however many parts there are and whichever threads run them: the results are always the
// same.
#pragma once

#include <type_traits>

#include "attention/flash_backward/cpu_products.h"
#include "cpu_convert.h"
#include "cpu_scratch.h"
#include "dtypes.h"
#include "integers.h"
#include "launch.h"
#include "parallel.h"

namespace kernelmint::flash_backward {
inline namespace KERNELMINT_ISA {

// Deterministic kernels and others are the same code.
template <class Args, class Products, class T, int D, bool Causal, int B_r, int B_c>
class Backward {
 public:
  static constexpr int kPartRows = 256;     // queries or keys that are worth a part
  static constexpr int kTasksOfThread = 4;  // so that threads of different speed end together

  struct alignas(64) Worker {
    Products products;
    Rows<B_r> rows;
  };

  Backward(const Args& args, int threads)
      : args_(args),
        group_(args.H / args.Hk),
        heads_(args.B * args.Hk),
        heads_at_once_(smaller(heads_, kTasksOfThread * threads)),
        query_blocks_(ceil_div(args.Sq, B_r)),
        key_blocks_(ceil_div(args.Sk, B_c)),
        parts_(larger(1, smaller(smaller(args.Sq, args.Sk) / kPartRows,
                                 ceil_div(kTasksOfThread * threads, larger(1, heads_))))) {}

  std::size_t bytes() const {
    return sizeof(float) * (row_sums() + heads_at_once_ * (sums_of_queries() + 2 * sums_of_keys()));
  }

  void run(float* memory, Worker* workers, int threads) {
    row_sums_ = memory;
    dq_ = row_sums_ + row_sums();
    dk_ = dq_ + heads_at_once_ * sums_of_queries();
    dv_ = dk_ + heads_at_once_ * sums_of_keys();
    parallel_for(args_.B * args_.H * query_blocks_, threads,
                 [&](std::int64_t index, int) { sum_rows(index); });
    for (std::int64_t first = 0; first < heads_; first += heads_at_once_) {
      const std::int64_t heads = smaller(heads_at_once_, heads_ - first);
      for (std::int64_t step = 0; step < 2 * parts_ - 1; ++step) {
        const std::int64_t first_part = larger(0, step - parts_ + 1),
                           end_part = smaller(step, parts_ - 1) + 1;
        parallel_for(heads * (end_part - first_part), threads, [&](std::int64_t index, int worker) {
          const std::int64_t key_part = first_part + index / heads;
          run({first, index % heads, key_part, step - key_part}, workers[worker]);
        });
      }
    }
  }

 private:
  struct Task {
    std::int64_t first_head, head;  // the head is first_head + head; sums are kept by `head`
    std::int64_t key_part, query_part;
  };

  std::int64_t row_sums() const { return round_up(args_.B * args_.H * args_.Sq, std::int64_t{16}); }
  std::int64_t sums_of_queries() const { return group_ * query_blocks_ * B_r * D; }
  std::int64_t sums_of_keys() const { return key_blocks_ * B_c * D; }

  // The sums D of a block of rows.
  void sum_rows(std::int64_t index) const {
    const std::int64_t block = index % query_blocks_, head = index / query_blocks_ % args_.H,
                       batch = index / query_blocks_ / args_.H;
    const std::int64_t end = smaller(args_.Sq, (block + 1) * B_r);
    for (std::int64_t query = block * B_r; query < end; ++query) {
      const T* gradient = args_.dout.template at<const T>(batch, query, head);
      const T* out = args_.o.template at<const T>(batch, query, head);
      F32 sum{};
      for (int d = 0; d < D; d += kLanes) sum = fma(load(gradient + d), load(out + d), sum);
      row_sums_[index / query_blocks_ * args_.Sq + query] = reduce_add(sum);
    }
  }

  void run(const Task& task, Worker& worker) const {
    const std::int64_t batch = (task.first_head + task.head) / args_.Hk,
                       kv_head = (task.first_head + task.head) % args_.Hk;
    const std::int64_t first_query_block = query_blocks_ * task.query_part / parts_,
                       query_end = query_blocks_ * (task.query_part + 1) / parts_,
                       first_key_block = key_blocks_ * task.key_part / parts_,
                       key_end = key_blocks_ * (task.key_part + 1) / parts_;
    const auto dq_of = [&](std::int64_t in_group, std::int64_t block) {
      return dq_ + ((task.head * group_ + in_group) * query_blocks_ + block) * B_r * D;
    };
    const auto of_key_block = [&](float* sums, std::int64_t block) {
      return sums + (task.head * key_blocks_ + block) * B_c * D;
    };
    if (task.key_part == 0) {
      for (std::int64_t in_group = 0; in_group < group_; ++in_group) {
        clear(dq_of(in_group, first_query_block), (query_end - first_query_block) * B_r);
      }
    }
    if (task.query_part == 0) {
      clear(of_key_block(dk_, first_key_block), (key_end - first_key_block) * B_c);
      clear(of_key_block(dv_, first_key_block), (key_end - first_key_block) * B_c);
    }
    Products& products = worker.products;
    products.begin();
    for (std::int64_t key_block = first_key_block; key_block < key_end; ++key_block) {
      const std::int64_t first_key = key_block * B_c;
      const int keys = static_cast<int>(smaller(args_.Sk - first_key, B_c));
      // The first query that sees one of them.
      const std::int64_t seeing =
          Causal ? larger(0, first_key - (args_.Sk - args_.Sq)) : std::int64_t{0};
      const std::int64_t first_block = larger(first_query_block, seeing / B_r);
      if (first_block >= query_end) break;
      products.load_keys_values(
          args_.k.template at<const T>(batch, first_key, kv_head), args_.k.stride[1],
          args_.v.template at<const T>(batch, first_key, kv_head), args_.v.stride[1], keys);
      for (std::int64_t block = first_block; block < query_end; ++block) {
        for (std::int64_t in_group = 0; in_group < group_; ++in_group) {
          step(worker, batch, kv_head * group_ + in_group, block, first_key, keys,
               dq_of(in_group, block), of_key_block(dk_, key_block), of_key_block(dv_, key_block));
        }
      }
    }
    if (task.key_part == parts_ - 1) {
      for (std::int64_t in_group = 0; in_group < group_; ++in_group) {
        for (std::int64_t block = first_query_block; block < query_end; ++block) {
          write_queries(batch, kv_head * group_ + in_group, block, dq_of(in_group, block));
        }
      }
    }
    if (task.query_part == parts_ - 1) {
      for (std::int64_t block = first_key_block; block < key_end; ++block) {
        const std::int64_t first_key = block * B_c;
        const int keys = static_cast<int>(smaller(args_.Sk - first_key, B_c));
        Products::write(of_key_block(dk_, block), args_.scale,
                        args_.dk.template at<T>(batch, first_key, kv_head), args_.dk.stride[1],
                        keys);
        Products::write(of_key_block(dv_, block), 1,
                        args_.dv.template at<T>(batch, first_key, kv_head), args_.dv.stride[1],
                        keys);
      }
    }
    products.end();
  }

  // The pairs of queries and keys of one block of each.
  void step(Worker& worker, std::int64_t batch, std::int64_t head, std::int64_t block,
            std::int64_t first_key, int keys, float* dq, float* dk, float* dv) const {
    Products& products = worker.products;
    const std::int64_t first_query = block * B_r;
    const int rows = static_cast<int>(smaller(args_.Sq - first_query, B_r));
    products.load_queries(args_.q.template at<const T>(batch, first_query, head), args_.q.stride[1],
                          args_.dout.template at<const T>(batch, first_query, head),
                          args_.dout.stride[1], rows);
    const auto visible = [&](int row) __attribute__((always_inline)) {
      if (!Causal) return keys;
      const std::int64_t seen = first_query + row + args_.Sk - args_.Sq + 1 - first_key;
      return static_cast<int>(larger(0, smaller(seen, keys)));
    };
    const int used = round_up(visible(rows - 1), Products::kKeys);
    products.multiply(rows, used);
    const float* lse = args_.lse.template at<const float>(batch, head, first_query);
    const float* sums = row_sums_ + (batch * args_.H + head) * args_.Sq + first_query;
    for (int r = 0; r < rows; ++r) {
      worker.rows.lse[r] = lse[r];
      worker.rows.sums[r] = sums[r];
    }
    products.differentiate(rows, used, args_.scale, worker.rows, visible);
    products.accumulate(rows, used, dq, dk, dv);
  }

  void write_queries(std::int64_t batch, std::int64_t head, std::int64_t block,
                     const float* sums) const {
    const std::int64_t first_query = block * B_r, rows = smaller(args_.Sq - first_query, B_r);
    for (std::int64_t r = 0; r < rows; ++r) {
      T* to = args_.dq.template at<T>(batch, first_query + r, head);
      for (int d = 0; d < D; d += kLanes) store(to + d, load(sums + r * D + d) * args_.scale);
    }
  }

  static void clear(float* sums, std::int64_t rows) {
    __builtin_memset(sums, 0, static_cast<std::size_t>(rows) * D * sizeof(float));
  }

  const Args& args_;
  std::int64_t group_;  // query heads that share a key head
  std::int64_t heads_;  // of keys, in all batch entries
  std::int64_t heads_at_once_;
  std::int64_t query_blocks_, key_blocks_;
  std::int64_t parts_;
  float* row_sums_ = nullptr;  // D of each row: [B, H, Sq]
  float* dq_ = nullptr;        // [heads_at_once, group, blocks of queries, B_r, D]
  float* dk_ = nullptr;        // [heads_at_once, blocks of keys, B_c D as the products have it]
  float* dv_ = nullptr;
};

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::flash_backward

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* args, const LaunchContext& context) {
  static_assert(std::is_same_v<Isa, isa::KERNELMINT_ISA>, "one instruction set a translation unit");
  return flash_backward::with_products<typename Config::dtype, Config::d_head, Config::B_r,
                                       Config::B_c>([&]<class Products>() -> LaunchResult {
    using Backward =
        flash_backward::Backward<typename Config::Args, Products, typename Config::dtype,
                                 Config::d_head, Config::causal, Config::B_r, Config::B_c>;
    using Worker = typename Backward::Worker;
    const int threads = context.num_threads;
    Backward backward(*static_cast<const typename Config::Args*>(args), threads);
    const Allocation memory = context.allocate(backward.bytes());
    if (memory.error != nullptr) return {memory.error};
    auto* workers =
        reinterpret_cast<Worker*>(cpu::Scratch::of_thread().reserve(sizeof(Worker) * threads));
    if (workers == nullptr) return {"no memory for the tiles of that many threads"};
    backward.run(static_cast<float*>(memory.data), workers, threads);
    return {};
  });
}

}  // namespace kernelmint
