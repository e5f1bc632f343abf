// Attention backward for compute capability 8.0 and later, on cp.async and mma.sync.
#pragma once

#include "attention/flash_backward/sm80_equal_sequences.cuh"
#include "attention/sm80_backward_block.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/shared_memory.cuh"

namespace kernelmint::flash_backward {

template <class Config>
__global__ void __launch_bounds__(Config::threads, Config::resident_blocks)
    flash_backward_sm80(const __grid_constant__ Problem<typename Config::Args> problem) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  ptx::let_next_kernel_start();
  attention_backward::sm80::Backward<Config, sm80::EqualSequences<Config>>(
      problem, ptx::shared_address(shared_memory))
      .run();
}

}  // namespace kernelmint::flash_backward

#include "attention/flash_backward/sm80_launch.cuh"
