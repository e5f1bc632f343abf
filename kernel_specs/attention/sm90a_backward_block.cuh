// A thread block of the main kernel: one warp loads, one adds dQ to memory, and two warpgroups
// compute. The block owns a block of keys: dK and dV stay in registers while all blocks of queries
// that see these keys pass by. S and dP are made transposed, 64 keys of a warpgroup by the queries,
// so that P and dS are left operands in registers; dS goes through shared memory for dQ, to which
// all blocks of keys add. Wide heads have consumers of their own: WideConsumer's add dQ themselves,
// and a warp says when.
#pragma once

#include <type_traits>

#include "attention/sm90a_backward_by_keys_consumer.cuh"
#include "attention/sm90a_backward_consumer.cuh"
#include "attention/sm90a_backward_producer.cuh"
#include "attention/sm90a_backward_sum_maker.cuh"
#include "attention/sm90a_backward_wide_consumer.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"

namespace kernelmint::attention_backward::sm90a {

template <class Config, class Sequences>
__device__ __forceinline__ void run_block(const typename Sequences::Problem& problem,
                                          unsigned char* shared_memory) {
  // All registers of the block are handed out when it starts, in eights: more than these, and a
  // warpgroup would wait for ever.
  static_assert(Config::producer_registers + Config::n_warpgroups * Config::consumer_registers <=
                65536 / Config::threads / 8 * 8 * (Config::n_warpgroups + 1));
  const typename Sequences::Shared shared(ptx::shared_address(shared_memory));
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if constexpr (!Sequences::kSaysWhenDone) ptx::let_next_kernel_start();
  if (threadIdx.x == 0) {
    if constexpr (Sequences::kPersistent)
      ManyTiles(shared.tile()).initialise(4 * Config::n_warpgroups + kWriters<Config>);
    if constexpr (Sequences::kMakesSums)
      SumMaker<Config, Sequences>(problem, Sequences::sum_boxes(shared)).initialise_barriers();
    shared.initialise_barriers();
  }
  if (threadIdx.x == 32) {
    ptx::prefetch_tensor_map(problem.q.map);
    ptx::prefetch_tensor_map(problem.k.map);
    ptx::prefetch_tensor_map(problem.v.map);
    ptx::prefetch_tensor_map(problem.dout.map);
  }
  Sequences::find_tile(problem, shared);
  __syncthreads();
  if (warpgroup == 0) {
    ptx::decrease_registers<Config::producer_registers>();
    if constexpr (Sequences::kPersistent) {
      if (threadIdx.x == 0) Producer<Config, Sequences>(problem, shared).load_tiles();
      if (threadIdx.x == 64) Producer<Config, Sequences>(problem, shared).take_tiles();
    } else {
      if (threadIdx.x == 0) Producer<Config, Sequences>(problem, shared).run();
    }
    if constexpr (Sequences::kSaysWhenDone)
      if (threadIdx.x == 96) {  // the next kernel reads counters that the kernel ahead makes zero
        ptx::wait_for_kernel_ahead();
        ptx::let_next_kernel_start();
      }
    if constexpr (Sequences::kMakesSums)
      if (threadIdx.x / 32 == 3)
        SumMaker<Config, Sequences>(problem, Sequences::sum_boxes(shared)).run();
    if constexpr (kConsumersAdd<Config>) {
      if (threadIdx.x / 32 == 1) TurnKeeper<Config, Sequences>(problem, shared).run();
    } else {
      if (threadIdx.x / 32 == 1 || kWriters<Config> == 2 && threadIdx.x / 32 == 3)
        QueryGradientWriter<Config, Sequences>(problem, shared).run();
    }
  } else {
    ptx::increase_registers<Config::consumer_registers>();
    using Consumer =
        std::conditional_t<Config::by_keys, ByKeysConsumer<Config, Sequences>,
                           std::conditional_t<kIsWide<Config>, WideConsumer<Config, Sequences>,
                                              sm90a::Consumer<Config, Sequences>>>;
    Consumer consumer(problem, shared, warpgroup - 1);
    if constexpr (Sequences::kPersistent)
      consumer.run_tiles();
    else
      consumer.run();
  }
}

}  // namespace kernelmint::attention_backward::sm90a
