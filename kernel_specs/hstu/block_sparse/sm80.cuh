// Block-sparse attention over padded sequences, on tensor cores.
#pragma once

#include "hstu/block_sparse/problem.h"
#include "hstu/sm80.cuh"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* args, const LaunchContext& context) {
  return hstu::block_sparse_attention<Config>(
      block_sparse::problem(*static_cast<const typename Config::Args*>(args)), context);
}

}  // namespace kernelmint
