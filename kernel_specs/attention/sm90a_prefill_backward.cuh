// Attention backward of sequences of any lengths for compute capability 9.0: flash_backward's
// thread blocks, over the blocks of keys of all sequences. Kernels that do more to scores than
// multiply them by a factor are others.
#pragma once

#include "attention/sm90a_backward_block.cuh"
#include "attention/sm90a_prefill_backward_any_lengths.cuh"
#include "attention/sm90a_prefill_backward_problem.h"

namespace kernelmint::flash_prefill_backward {

template <class Config, sm90a::Scores kScores>
__global__ void __launch_bounds__(Config::threads, 1) flash_prefill_backward_sm90a(
    const __grid_constant__ sm90a::Problem<typename Config::Args> problem) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  attention_backward::sm90a::run_block<Config, sm90a::AnyLengths<Config, kScores>>(problem,
                                                                                   shared_memory);
}

}  // namespace kernelmint::flash_prefill_backward

#include "attention/sm90a_prefill_backward_launch.cuh"
