// Block-sparse attention over jagged sequences, on tensor cores.
#pragma once

#include "hstu/hstu_bsa/problem.h"
#include "hstu/sm80.cuh"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* args, const LaunchContext& context) {
  const auto& jagged = *static_cast<const typename Config::Args*>(args);
  if (const LaunchResult checked = hstu_bsa::check_max_length(jagged); checked.error != nullptr)
    return checked;
  return hstu::block_sparse_attention<Config>(hstu_bsa::problem(jagged), context);
}

}  // namespace kernelmint
