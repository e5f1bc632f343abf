// Reductions over ascending indices on the CPU: a task takes some rows of a batch's result, and
// finds the first of its indices.
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
  for (std::int64_t b = 0; b < args.B && args.E > 0; ++b) {  // they ascend: the ends tell
    const std::int64_t least = *args.index.template at<const std::int64_t>(b, 0);
    const std::int64_t most = *args.index.template at<const std::int64_t>(b, args.E - 1);
    if (least < 0 || most >= args.N) fault.report(least < 0 ? least : most);
  }
  for_rows(
      args.B, args.N, args.B * args.E * args.K, context.num_threads,
      [&](std::int64_t b, std::int64_t first, std::int64_t last) {
        std::int64_t e = lower_bound(args.index, b, args.E, first);
        for (std::int64_t row = first; row < last; ++row) {
          const std::int64_t begin = e;
          while (e < args.E && *args.index.template at<const std::int64_t>(b, e) == row) ++e;
          for (std::int64_t k = 0; k < args.K; k += kColumns) {
            const int columns = static_cast<int>(smaller(kColumns, args.K - k));
            const auto* src = reinterpret_cast<const T*>(args.src.template as<const T>()) +
                              (b * args.E + begin) * args.K + k;
            const bool is_given = args.initial.data != nullptr;
            const T* initial =
                args.initial.template as<const T>() + (b * args.N + row) * args.K + k;
            Sum values[kColumns];
            std::int64_t where[kColumns];
            for (int i = 0; i < columns; ++i)
              values[i] = static_cast<Sum>(is_given ? initial[i] : Reducer<T, kReduce>::init());
            for (int i = 0; i < columns; ++i) where[i] = args.E;
            for (std::int64_t at = begin; at < e; ++at, src += args.K)
              for (int i = 0; i < columns; ++i)
                Reducer<Sum, kReduce>::update(&values[i], static_cast<Sum>(src[i]), &where[i], at);
            T* result =
                reinterpret_cast<T*>(args.result.template at<typename Config::dtype>(b, row, k));
            std::int64_t unused;
            std::int64_t* arg = &unused;
            if constexpr (kHasArg) arg = args.arg.template at<std::int64_t>(b, row, k);
            for (int i = 0; i < columns; ++i) {
              if (kHasArg) arg[i] = args.E;
              if (begin == e) {
                result[i] = static_cast<T>(values[i]);
              } else {
                Reducer<T, kReduce>::write(result + i, static_cast<T>(values[i]),
                                           kHasArg ? arg + i : arg, where[i],
                                           static_cast<int>(e - begin));
              }
              // As upstream: what is still as it was filled becomes 0.
              if (kHasArg && !is_given && result[i] == Reducer<T, kReduce>::init())
                result[i] = T(0);
            }
          }
        }
      });
  return fault.result("index", 0, args.N - 1);
}

}  // namespace kernelmint
