// The library's scan, in memory of the launch.
#pragma once

#include "inclusive_sum/scan_library.h"
#include "launch.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  const std::size_t bytes = scan_library::get_workspace_size(args.N);
  const Allocation workspace = context.allocate(bytes + args.spare);
  if (workspace.error != nullptr) return {workspace.error};
  if (reinterpret_cast<std::uintptr_t>(workspace.data) % 256 != 0) return {"memory out of line"};
  if (context.allocate(0).data != nullptr) return {"memory if none was asked for"};
  // Pieces from several threads, as kernels may ask for them.
  parallel_for(64, context.num_threads, [&](std::int64_t size, int /*worker*/) {
    const Allocation piece = context.allocate(size + 1);
    if (piece.error == nullptr) static_cast<char*>(piece.data)[size] = 1;
  });
  scan_library::inclusive_sum(args.x.template as<const float>(), args.y.template as<float>(),
                              args.N, workspace.data, context.num_threads);
  return {};
}

}  // namespace kernelmint
