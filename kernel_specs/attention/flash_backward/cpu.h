// Attention backward of sequences of equal lengths on the CPU: cpu_backward.h's loop. Deterministic
// kernels and others are the same code.
#pragma once

#include <type_traits>

#include "attention/cpu_backward.h"
#include "attention/flash_backward/cpu_trace.h"
#include "launch.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  static_assert(std::is_same_v<Isa, isa::KERNELMINT_ISA>, "one instruction set a translation unit");
  using Args = typename Config::Args;
  using Lengths = attention_backward::EqualLengths<Args, Config::d_head, Config::causal>;
  using Call = std::conditional_t<flash_backward::Traced<Config>,
                                  flash_backward::Traces<Config, Lengths>, Lengths>;
  return attention_backward::run_backward<typename Config::dtype, Config::d_head, Config::B_r,
                                          Config::B_c>(Call{*static_cast<const Args*>(pointer)},
                                                       context);
}

}  // namespace kernelmint
