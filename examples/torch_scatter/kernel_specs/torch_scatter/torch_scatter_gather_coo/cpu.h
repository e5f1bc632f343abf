// Values at indices on the CPU: a task takes some indices of a batch.
#pragma once

#include "torch_scatter/cpu_rows.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using namespace torch_scatter;
  using T = typename Config::dtype;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  Fault fault;
  for_rows(args.B, args.E, args.B * args.E * args.K, context.num_threads,
           [&](std::int64_t b, std::int64_t first, std::int64_t last) {
             for (std::int64_t e = first; e < last; ++e) {
               const std::int64_t row = *args.index.template at<const std::int64_t>(b, e);
               if (row < 0 || row >= args.N) return fault.report(row);
               T* result = args.result.template at<T>(b, e);
               const T* src = args.src.template at<const T>(b, row);
               if (args.K == 1)
                 *result = *src;
               else
                 __builtin_memcpy(result, src, args.K * sizeof(T));
             }
           });
  return fault.result("index", 0, args.N - 1);
}

}  // namespace kernelmint
