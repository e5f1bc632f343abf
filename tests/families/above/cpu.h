#pragma once

#include "above/above.h"
#include "launch.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& /*context*/) {
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  if (above::select<Config>(args)) return {};
  return {"the workspaces are not filled"};
}

}  // namespace kernelmint
