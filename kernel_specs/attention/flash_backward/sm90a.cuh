// Attention backward for compute capability 9.0, on TMA and wgmma: FlashAttention-3's split of the
// work (Shah et al., 2024), in another order. In each thread block one warp loads, one adds dQ to
// memory, and two warpgroups compute. A thread block owns a block of keys: dK and dV stay in
// registers while all blocks of queries that see these keys pass by. S and dP are made transposed,
// 64 keys of a warpgroup by the queries, so that P and dS are left operands in registers; dS goes
// through shared memory for dQ, to which all blocks of keys add.
#pragma once

#include <cstdint>

#include "attention/flash_backward/sm90a_consumer.cuh"
#include "attention/flash_backward/sm90a_problem.h"
#include "attention/flash_backward/sm90a_producer.cuh"
#include "attention/flash_backward/sm90a_shared_memory.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"

namespace kernelmint::flash_backward {

template <class Config>
__global__ void __launch_bounds__(Config::threads, 1)
    flash_backward_sm90a(const __grid_constant__ sm90a::Problem<typename Config::Args> problem) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const sm90a::SharedMemory<Config> shared(ptx::shared_address(shared_memory));
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
  ptx::let_next_kernel_start();
  if (threadIdx.x == 0) shared.initialise_barriers();
  if (threadIdx.x == 32) {
    ptx::prefetch_tensor_map(problem.q.map);
    ptx::prefetch_tensor_map(problem.k.map);
    ptx::prefetch_tensor_map(problem.v.map);
    ptx::prefetch_tensor_map(problem.dout.map);
  }
  __syncthreads();
  if (warpgroup == 0) {
    ptx::decrease_registers<Config::producer_registers>();
    if (threadIdx.x == 0) sm90a::Producer<Config>(problem, shared).run();
    if (threadIdx.x / 32 == 1) sm90a::QueryGradientWriter<Config>(problem, shared).run();
  } else {
    ptx::increase_registers<Config::consumer_registers>();
    sm90a::Consumer<Config>(problem, shared, warpgroup - 1).run();
  }
}

}  // namespace kernelmint::flash_backward

#include "attention/flash_backward/sm90a_launch.cuh"
