// Block-sparse attention over jagged sequences, on tensor cores.
#pragma once

#include "hstu/block_sparse_sm80.cuh"
#include "hstu_bsa/problem.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* args, const LaunchContext& context) {
  return hstu::block_sparse_attention<Config>(
      hstu_bsa::problem(*static_cast<const typename Config::Args*>(args)), context);
}

}  // namespace kernelmint
