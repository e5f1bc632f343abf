// Reductions between pointers on the CPU: a task takes some rows of a batch.
#pragma once

#include "torch_scatter/cpu_rows.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using namespace torch_scatter;
  using T = element_t<typename Config::dtype>;
  using Sum = typename Element<typename Config::dtype>::opmath;
  constexpr ReductionType kReduce = reduction_of<Config>();
  constexpr bool kHasArg = kReduce == MIN || kReduce == MAX;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  Fault fault;
  for_rows(
      args.B, args.P > 0 ? args.P - 1 : 0, args.B * args.E * args.K, context.num_threads,
      [&](std::int64_t b, std::int64_t first, std::int64_t last) {
        for (std::int64_t row = first; row < last; ++row) {
          const std::int64_t begin = *args.indptr.template at<const std::int64_t>(b, row);
          const std::int64_t end = *args.indptr.template at<const std::int64_t>(b, row + 1);
          // An empty src has any pointers, as upstream's.
          const bool is_outside = begin < 0 || end > args.E;
          if (is_outside && args.E > 0) return fault.report(begin < 0 ? begin : end);
          const std::int64_t stop = is_outside ? begin : end;
          for (std::int64_t k = 0; k < args.K; k += kColumns) {
            const int columns = static_cast<int>(smaller(kColumns, args.K - k));
            const T* src = reinterpret_cast<const T*>(
                args.src.template at<const typename Config::dtype>(b, begin, k));
            Sum values[kColumns];
            std::int64_t where[kColumns];
            for (int i = 0; i < columns; ++i) values[i] = Reducer<Sum, kReduce>::init();
            for (int i = 0; i < columns; ++i) where[i] = args.E;
            for (std::int64_t e = begin; e < stop; ++e, src += args.K)
              for (int i = 0; i < columns; ++i)
                Reducer<Sum, kReduce>::update(&values[i], static_cast<Sum>(src[i]), &where[i], e);
            T* result =
                reinterpret_cast<T*>(args.result.template at<typename Config::dtype>(b, row, k));
            std::int64_t unused;
            std::int64_t* arg = &unused;
            if constexpr (kHasArg) arg = args.arg.template at<std::int64_t>(b, row, k);
            for (int i = 0; i < columns; ++i) {
              if constexpr (kHasArg) arg[i] = args.E;
              Reducer<T, kReduce>::write(result + i, static_cast<T>(values[i]),
                                         kHasArg ? arg + i : arg, where[i],
                                         static_cast<int>(stop - begin));
            }
          }
        }
      });
  return fault.result("indptr", 0, args.E);
}

}  // namespace kernelmint
