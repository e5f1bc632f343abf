// Attention forward on the CPU. A task is a tile: a block of B_r queries of one head, or, if a head
// has few queries, the queries of several heads that share keys.
#pragma once

#include <type_traits>

#include "attention/cpu.h"
#include "attention/flash_forward/cpu_trace.h"
#include "integers.h"
#include "launch.h"

namespace kernelmint::flash_forward {
inline namespace KERNELMINT_ISA {

using namespace kernelmint::attention;

template <class Config>
class Attention {
 public:
  using T = typename Config::dtype;
  using Args = typename Config::Args;
  using Worker = TileWorker<Config>;
  static constexpr int D = Config::d_head, B_r = Config::B_r, B_c = Config::B_c;
  static constexpr bool kFinishesScores = false;
  // Heads share a task up to so many rows: with more, packing weighs little, and it matters more
  // that there are tasks for all threads.
  static constexpr int kSharedRows = B_r < 64 ? B_r : 64;

  // Row r is query first_query + r / heads of head first_head + r % heads: in the queries' order,
  // so that the last row sees most, even under the causal mask.
  struct Tile {
    std::int64_t batch, kv_head, first_head, heads, first_query;
    int rows;

    std::int64_t entry() const { return batch; }
    std::int64_t head(int r) const { return first_head + r % heads; }
    std::int64_t row(int r) const { return first_query + r / heads; }
  };

  using Trace = std::conditional_t<Traced<Config>, flash_forward::Trace<Config, Tile>, NoTrace>;

  explicit Attention(const Args& args)
      : args(args),
        scale_log2(args.scale * kLog2E),
        query_blocks_(ceil_div(args.Sq, B_r)),
        group_(args.H / args.Hk),
        heads_at_once_(larger(1, smaller(group_, kSharedRows / larger(1, args.Sq)))),
        head_blocks_(args.Hk * ceil_div(group_, heads_at_once_)) {}

  std::int64_t tasks() const { return query_blocks_ * args.B * head_blocks_; }

  // Tasks of all heads for the last queries come first: under the causal mask they are the longest.
  void run(std::int64_t index, Worker& worker) const {
    const std::int64_t of_all_heads = args.B * head_blocks_,
                       blocks_of_group = head_blocks_ / args.Hk;
    Tile tile;
    tile.batch = index % of_all_heads / head_blocks_;
    tile.kv_head = index % head_blocks_ / blocks_of_group;
    const std::int64_t head_in_group = index % blocks_of_group * heads_at_once_;
    tile.first_head = tile.kv_head * group_ + head_in_group;
    tile.heads = smaller(heads_at_once_, group_ - head_in_group);
    tile.first_query = (query_blocks_ - 1 - index / of_all_heads) * B_r;
    tile.rows = static_cast<int>(smaller((args.Sq - tile.first_query) * tile.heads, B_r));
    attend(*this, tile, worker);
  }

  template <bool kOfValues>
  BlockRows<T> rows_of(const Tile& tile, std::int64_t first_key, int, Worker&) const {
    const auto& of = kOfValues ? args.v : args.k;
    return {of.template at<const T>(tile.batch, first_key, tile.kv_head), of.stride[1]};
  }

  // Under the causal mask the last query's own key is the last one.
  const T* begin_row(const Tile& tile, int r, Worker& worker) const {
    worker.begin[r] = 0;
    worker.end[r] = Config::causal ? larger(0, tile.row(r) + args.Sk - args.Sq + 1) : args.Sk;
    return args.q.template at<const T>(tile.batch, tile.row(r), tile.head(r));
  }

  static constexpr std::int64_t value_columns() { return D; }

  const Args& args;
  const float scale_log2;

 private:
  std::int64_t query_blocks_;
  std::int64_t group_;          // query heads that share a key head
  std::int64_t heads_at_once_;  // heads of a group in one task
  std::int64_t head_blocks_;    // tasks that cover all heads of one batch entry
};

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::flash_forward

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* args, const LaunchContext& context) {
  static_assert(std::is_same_v<Isa, isa::KERNELMINT_ISA>, "one instruction set a translation unit");
  return attention::run_tasks(
      flash_forward::Attention<Config>(*static_cast<const typename Config::Args*>(args)), context);
}

}  // namespace kernelmint
