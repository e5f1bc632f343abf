// Reductions over ascending indices on the CPU: a task takes some rows of a batch's result, and
// finds the first of its indices.
#pragma once

#include "torch_scatter/cpu_rows.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using namespace torch_scatter;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  Fault fault;
  for (std::int64_t b = 0; b < args.B && args.E > 0; ++b) {  // they ascend: the ends tell
    const std::int64_t least = *args.index.template at<const std::int64_t>(b, 0);
    const std::int64_t most = *args.index.template at<const std::int64_t>(b, args.E - 1);
    if (least < 0 || most >= args.N) fault.report(least < 0 ? least : most);
  }
  for_rows(args.B, args.N, args.B * args.E * args.K, context.num_threads,
           [&](std::int64_t b, std::int64_t first, std::int64_t last) {
             std::int64_t e = lower_bound(args.index, b, args.E, first);
             for (std::int64_t row = first; row < last; ++row) {
               const std::int64_t begin = e;
               while (e < args.E && *args.index.template at<const std::int64_t>(b, e) == row) ++e;
               reduce_row<Config>(args, b, row, begin, e);
             }
           });
  return fault.result("index", 0, args.N - 1);
}

}  // namespace kernelmint
