// Reductions between pointers on the CPU: a task takes some rows of a batch.
#pragma once

#include "torch_scatter/cpu_rows.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using namespace torch_scatter;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  Fault fault;
  for_rows(args.B, args.P > 0 ? args.P - 1 : 0, args.B * args.E * args.K, context.num_threads,
           [&](std::int64_t b, std::int64_t first, std::int64_t last) {
             for (std::int64_t row = first; row < last; ++row) {
               const std::int64_t begin = *args.indptr.template at<const std::int64_t>(b, row);
               const std::int64_t end = *args.indptr.template at<const std::int64_t>(b, row + 1);
               // An empty src has any pointers, as upstream's.
               const bool is_outside = begin < 0 || end > args.E;
               if (is_outside && args.E > 0) return fault.report(begin < 0 ? begin : end);
               reduce_row<Config>(args, b, row, begin, is_outside ? begin : end);
             }
           });
  return fault.result("indptr", 0, args.E);
}

}  // namespace kernelmint
