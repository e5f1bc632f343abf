// Block-sparse attention over jagged sequences, on the CPU.
#pragma once

#include <type_traits>

#include "hstu/cpu.h"
#include "hstu/hstu_bsa/problem.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* args, const LaunchContext& context) {
  static_assert(std::is_same_v<Isa, isa::KERNELMINT_ISA>, "one instruction set a translation unit");
  using Attention = hstu::Attention<Config::attention_dim, Config::linear_dim, Config::block_size,
                                    Config::block_count, hstu::mode_of<Config>()>;
  const auto& jagged = *static_cast<const typename Config::Args*>(args);
  if (const LaunchResult checked = hstu_bsa::check_offsets(jagged); checked.error != nullptr)
    return checked;
  return hstu::block_sparse_attention<Attention>(hstu_bsa::problem(jagged), context);
}

}  // namespace kernelmint
