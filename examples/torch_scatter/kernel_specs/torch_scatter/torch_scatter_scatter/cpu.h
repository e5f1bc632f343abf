// Reductions over any indices on the CPU: a task takes some columns of a batch, and goes through E
// in its order, as upstream does.
#pragma once

#include "torch_scatter/cpu_rows.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using namespace torch_scatter;
  using T = element_t<typename Config::dtype>;
  constexpr ReductionType kReduce = reduction_of<Config>();
  constexpr bool kHasArg = kReduce == MIN || kReduce == MAX;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  Fault fault;
  const T* all = args.src.template as<const T>();
  constexpr std::int64_t kTogether = 16;  // columns, which share cache lines
  for_rows(args.B, ceil_div(args.K, kTogether), args.B * args.E * args.K, context.num_threads,
           [&](std::int64_t b, std::int64_t first, std::int64_t last) {
             first *= kTogether, last = smaller(last * kTogether, args.K);
             T* result = reinterpret_cast<T*>(args.result.template at<typename Config::dtype>(b));
             const T* initial = args.initial.template as<const T>() + b * args.N * args.K;
             const bool is_given = args.initial.data != nullptr;
             std::int64_t unused;
             for (std::int64_t n = 0; n < args.N; ++n)
               for (std::int64_t k = first; k < last; ++k) {
                 result[n * args.K + k] =
                     is_given ? initial[n * args.K + k] : Reducer<T, kReduce>::init();
                 if constexpr (kHasArg) *args.arg.template at<std::int64_t>(b, n, k) = args.E;
               }
             for (std::int64_t e = 0; e < args.E; ++e)
               for (std::int64_t k = first; k < last; ++k) {
                 const std::int64_t row = *args.index.template at<const std::int64_t>(b, e, k);
                 if (row < 0 || row >= args.N) return fault.report(row);
                 std::int64_t* arg = &unused;
                 if constexpr (kHasArg) arg = args.arg.template at<std::int64_t>(b, row, k);
                 Reducer<T, kReduce>::update(result + row * args.K + k,
                                             all[(b * args.E + e) * args.K + k], arg, e);
               }
             if (!kHasArg || is_given) return;
             for (std::int64_t n = 0; n < args.N; ++n)
               for (std::int64_t k = first; k < last; ++k)
                 if (result[n * args.K + k] == Reducer<T, kReduce>::init())
                   result[n * args.K + k] = T(0);
           });
  return fault.result("index", 0, args.N - 1);
}

}  // namespace kernelmint
