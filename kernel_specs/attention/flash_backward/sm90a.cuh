// Attention backward for compute capability 9.0, on TMA and wgmma: FlashAttention-3's split of the
// work (Shah et al., 2024), in another order.
#pragma once

#include "attention/flash_backward/sm90a_equal_sequences.cuh"
#include "attention/flash_backward/sm90a_problem.h"
#include "attention/sm90a_backward_block.cuh"
#include "flash_backward/sm90a_wgmma.cuh"

namespace kernelmint::flash_backward {

template <class Config>
__global__ void __launch_bounds__(Config::threads, 1)
    flash_backward_sm90a(const __grid_constant__ sm90a::Problem<typename Config::Args> problem) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  attention_backward::sm90a::run_block<Config, sm90a::EqualSequences<Config>>(problem,
                                                                              shared_memory);
}

}  // namespace kernelmint::flash_backward

#include "attention/flash_backward/sm90a_launch.cuh"
