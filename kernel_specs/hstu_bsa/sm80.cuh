// Block-sparse attention over jagged sequences, on tensor cores.
#pragma once

#include "hstu/block_sparse_sm80.cuh"
#include "hstu_bsa/problem.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* args, const LaunchContext& context) {
  using Shape = hstu::Shape<
      Config::attention_dim, Config::linear_dim, Config::block_size, Config::block_count,
      Config::mode == Config::mode_type::interleaved ? hstu::Mode::interleaved : hstu::Mode::fixed,
      Config::dot == Config::dot_type::bf16 ? hstu::Dot::bf16 : hstu::Dot::tf32x3,
      Config::schedule == Config::schedule_type::tiles ? hstu::Schedule::tiles
                                                       : hstu::Schedule::blocks,
      Config::n_warps>;
  return hstu::block_sparse_attention<Config, Shape>(
      hstu_bsa::problem(*static_cast<const typename Config::Args*>(args)), context);
}

}  // namespace kernelmint
