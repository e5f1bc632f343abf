// Block-sparse attention over padded sequences, on the CPU.
#pragma once

#include <type_traits>

#include "hstu/block_sparse/problem.h"
#include "hstu/cpu.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* args, const LaunchContext& context) {
  static_assert(std::is_same_v<Isa, isa::KERNELMINT_ISA>, "one instruction set a translation unit");
  using Attention = hstu::Attention<Config::attention_dim, Config::linear_dim, Config::block_size,
                                    Config::block_count, hstu::mode_of<Config>()>;
  return hstu::block_sparse_attention<Attention>(
      block_sparse::problem(*static_cast<const typename Config::Args*>(args)), context);
}

}  // namespace kernelmint
