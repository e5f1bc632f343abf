// Gradients of channels that lie side by side, on the CPU.
#pragma once

#include "causal_conv1d/cpu_channel.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  return causal_conv1d::backward<Config, /*kChannelLast=*/true>(args, context);
}

}  // namespace kernelmint
