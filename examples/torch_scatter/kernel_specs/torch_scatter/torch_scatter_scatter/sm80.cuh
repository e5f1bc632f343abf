// Reductions over any indices on a GPU: upstream's kernels, by atomics; passes before and after.
#pragma once

#include "torch_scatter/sm80_launch.cuh"

namespace kernelmint::torch_scatter {

template <class Config, class T = element_t<typename Config::dtype>>
__global__ void scatter_sm80(const T* src, const Info index, T* result, int E, int K, int N,
                             int values) {
  scatter_kernel<T, reduction_of<Config>()>(src, index, result, E, K, N, values);
}

template <class Config, class T = element_t<typename Config::dtype>>
__global__ void scatter_arg_sm80(const T* src, const Info index, const T* result, std::int64_t* arg,
                                 int E, int K, int N, int values) {
  scatter_arg_kernel<T>(src, index, result, arg, E, K, N, values);
}

}  // namespace kernelmint::torch_scatter

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using namespace torch_scatter;
  using T = element_t<typename Config::dtype>;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  const auto* src = args.src.template as<const T>();
  auto* result = args.result.template as<T>();
  const int E = static_cast<int>(args.E), K = static_cast<int>(args.K);
  const int N = static_cast<int>(args.N);
  const std::int64_t size = args.B * args.N * args.K, values = args.B * args.E * args.K;
  LaunchResult done =
      launch_cuda<&begin_result<Config>>(some_each_thread(size), context, args, size);
  if (done.error != nullptr) return done;
  const std::int64_t extents[] = {args.B, args.E, args.K};
  const Info index = info_of(args.index, extents);
  if (values > 0)
    done = launch_cuda<&scatter_sm80<Config>>(one_thread_each(values), context, src, index, result,
                                              E, K, N, values);
  if constexpr (has_arg<Config>()) {
    if (done.error == nullptr && args.initial.data == nullptr)
      done = launch_cuda<&end_result<Config>>(some_each_thread(size), context, args, size);
    if (done.error == nullptr && values > 0)
      done = launch_cuda<&scatter_arg_sm80<Config>>(one_thread_each(values), context, src, index,
                                                    result, args.arg.template as<std::int64_t>(), E,
                                                    K, N, values);
  }
  return done;
}

}  // namespace kernelmint
