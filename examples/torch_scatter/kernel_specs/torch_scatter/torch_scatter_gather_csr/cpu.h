// Values copied between pointers on the CPU: a task takes some rows of a batch.
#pragma once

#include <algorithm>

#include "torch_scatter/cpu_rows.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using namespace torch_scatter;
  using T = typename Config::dtype;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  Fault fault;
  if (args.zeroed) __builtin_memset(args.result.data, 0, args.B * args.E * args.K * sizeof(T));
  for_rows(args.B, args.N, args.B * args.E * args.K, context.num_threads,
           [&](std::int64_t b, std::int64_t first, std::int64_t last) {
             for (std::int64_t row = first; row < last; ++row) {
               const std::int64_t begin = *args.indptr.template at<const std::int64_t>(b, row);
               const std::int64_t end = *args.indptr.template at<const std::int64_t>(b, row + 1);
               if (begin < 0 || end > args.E) return fault.report(begin < 0 ? begin : end);
               const T* src = args.src.template at<const T>(b, row);
               if (args.K == 1 && begin < end) {
                 std::fill_n(args.result.template at<T>(b, begin), end - begin, *src);
                 continue;
               }
               for (std::int64_t e = begin; e < end; ++e)
                 __builtin_memcpy(args.result.template at<T>(b, e), src, args.K * sizeof(T));
             }
           });
  return fault.result("indptr", 0, args.E);
}

}  // namespace kernelmint
