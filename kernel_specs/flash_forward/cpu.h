// Attention forward on the CPU: FlashAttention-2's loops (arXiv:2307.08691, algorithm 1). A task is
// a block of B_r queries of one head; blocks of B_c keys and values pass by, the last first. Within
// a block the queries are taken in strips, whose scores stay in the first-level cache from the
// first product through the softmax to the second.
#pragma once

#include <type_traits>

#include "cpu_scratch.h"
#include "dtypes.h"
#include "flash_forward/cpu_softmax.h"
#include "flash_forward/cpu_tile_products.h"
#include "flash_forward/cpu_vector_products.h"
#include "launch.h"
#include "parallel.h"

namespace kernelmint::flash_forward {
inline namespace KERNELMINT_ISA {

// Tiles where the processor has them and the dtype splits into few enough of what they multiply.
template <class T, int D, int B_r, int B_c>
struct ProductsFor {
  using type = VectorProducts<T, D, B_r, B_c>;
};
#if defined(KERNELMINT_AMX_TILES)
template <int D, int B_r, int B_c>
struct ProductsFor<bf16, D, B_r, B_c> {
  using type = TileProducts<bf16, D, B_r, B_c>;
};
template <int D, int B_r, int B_c>
struct ProductsFor<fp16, D, B_r, B_c> {
  using type = TileProducts<fp16, D, B_r, B_c>;
};
#endif

template <class Config>
class Attention {
 public:
  using T = typename Config::dtype;
  using Args = typename Config::Args;
  static constexpr int D = Config::d_head;
  static constexpr int B_r = Config::B_r;
  static constexpr int B_c = Config::B_c;
  using Products = typename ProductsFor<T, D, B_r, B_c>::type;

  struct alignas(64) Worker {
    Products products;
    RowStatistics<B_r> statistics;
  };

  Attention(const Args& args, Worker* workers)
      : args_(args),
        workers_(workers),
        query_blocks_((args.Sq + B_r - 1) / B_r),
        scale_log2_(args.scale * 0x1.715476p0f) {}  // log2(e)

  std::int64_t tasks() const { return query_blocks_ * args_.B * args_.H; }

  // Tasks of all heads for the last queries come first: under the causal mask they are the longest.
  void operator()(std::int64_t task, int worker) const {
    const std::int64_t heads = args_.B * args_.H;
    run(workers_[worker], query_blocks_ - 1 - task / heads, task % heads / args_.H, task % args_.H);
  }

 private:
  void run(Worker& worker, std::int64_t query_block, std::int64_t batch, std::int64_t head) const {
    Products& products = worker.products;
    const std::int64_t kv_head = head / (args_.H / args_.Hk);
    const std::int64_t first_row = query_block * B_r;
    const int rows = static_cast<int>(smaller(args_.Sq - first_row, B_r));
    const T* q = static_cast<const T*>(args_.q.data) + batch * args_.q.stride[0] +
                 first_row * args_.q.stride[1] + head * args_.q.stride[2];
    const T* k = static_cast<const T*>(args_.k.data) + batch * args_.k.stride[0] +
                 kv_head * args_.k.stride[2];
    const T* v = static_cast<const T*>(args_.v.data) + batch * args_.v.stride[0] +
                 kv_head * args_.v.stride[2];

    products.begin();
    products.load_queries(q, args_.q.stride[1], rows);
    worker.statistics.clear(rows);
    for (int r = 0; r < rows; ++r) {
      for (int d = 0; d < D; d += kLanes) store(&products.out[r][d], F32{});
    }
    const std::int64_t keys = seen_keys(first_row + rows - 1);  // of the row that sees most
    for (std::int64_t block = (keys + B_c - 1) / B_c; block-- > 0;) {
      const std::int64_t first_key = block * B_c;
      const int count = static_cast<int>(smaller(keys - first_key, B_c));
      products.load_keys_values(k + first_key * args_.k.stride[1], args_.k.stride[1],
                                v + first_key * args_.v.stride[1], args_.v.stride[1], count);
      for (int first = 0; first < rows; first += Products::kStripRows) {
        const int strip = static_cast<int>(smaller(rows - first, Products::kStripRows));
        const auto visible = [&](int i) __attribute__((always_inline)) {
          const std::int64_t seen = seen_keys(first_row + first + i) - first_key;
          return static_cast<int>(smaller(seen < 0 ? 0 : seen, count));
        };
        const int used = Products::round_up(visible(strip - 1));  // the last row sees most
        if (used == 0) continue;
        products.multiply_queries_keys(first, strip, used);
        online_softmax(products, worker.statistics, products.out, first, strip, used, scale_log2_,
                       visible);
        products.multiply_probabilities_values(first, strip, used);
      }
    }
    products.end();
    finish(worker, batch, head, first_row, rows);
  }

  // How many keys a query sees: all, or under the causal mask those up to its own, where the last
  // query's own is the last key.
  KERNELMINT_ALWAYS_INLINE std::int64_t seen_keys(std::int64_t row) const {
    if constexpr (!Config::causal) return args_.Sk;
    const std::int64_t seen = row + args_.Sk - args_.Sq + 1;
    return seen < 0 ? 0 : seen;
  }

  // Divides by the sums and writes o and lse. A row that saw no key: o = 0, lse = -inf.
  void finish(const Worker& worker, std::int64_t batch, std::int64_t head, std::int64_t first_row,
              int rows) const {
    T* o = static_cast<T*>(args_.o.data) + batch * args_.o.stride[0] + head * args_.o.stride[2];
    float* lse = static_cast<float*>(args_.lse.data);
    for (int r = 0; r < rows; ++r) {
      const float sum = reduce_add(load(worker.statistics.sum[r]));
      const F32 divisor = splat(sum == 0 ? 1 : sum);
      T* row = o + (first_row + r) * args_.o.stride[1];
      for (int d = 0; d < D; d += kLanes) {
        store(row + d, load(&worker.products.out[r][d]) / divisor);
      }
      if (lse != nullptr) {
        constexpr float kLn2 = 0x1.62e43p-1f;
        lse[batch * args_.lse.stride[0] + head * args_.lse.stride[1] +
            (first_row + r) * args_.lse.stride[2]] =
            sum == 0 ? kNoKey : worker.statistics.maximum[r] * kLn2 + __builtin_logf(sum);
      }
    }
  }

  KERNELMINT_ALWAYS_INLINE static std::int64_t smaller(std::int64_t a, std::int64_t b) {
    return a < b ? a : b;
  }

  const Args& args_;
  Worker* workers_;
  std::int64_t query_blocks_;
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
  auto* workers = reinterpret_cast<Worker*>(
      cpu::Scratch::of_thread().reserve(sizeof(Worker) * context.num_threads));
  if (workers == nullptr) return {"no memory for the tiles of that many threads"};
  const Attention attention(*static_cast<const typename Config::Args*>(args), workers);
  parallel_for(attention.tasks(), context.num_threads, attention);
  return {};
}

}  // namespace kernelmint
