// Block-sparse attention over padded sequences, on tensor cores.
#pragma once

#include "block_sparse/problem.h"
#include "hstu/block_sparse_sm80.cuh"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* args, const LaunchContext& context) {
  using Shape =
      hstu::Shape<Config::attention_dim, Config::linear_dim, Config::block_size,
                  Config::block_count,
                  Config::mode == Config::mode_type::literal       ? hstu::Mode::literal
                  : Config::mode == Config::mode_type::interleaved ? hstu::Mode::interleaved
                                                                   : hstu::Mode::fixed,
                  Config::dot == Config::dot_type::bf16 ? hstu::Dot::bf16 : hstu::Dot::tf32x3,
                  Config::schedule == Config::schedule_type::tiles ? hstu::Schedule::tiles
                                                                   : hstu::Schedule::blocks,
                  Config::n_warps>;
  return hstu::block_sparse_attention<Config, Shape>(
      block_sparse::problem(*static_cast<const typename Config::Args*>(args)), context);
}

}  // namespace kernelmint
