// Reductions over any indices on a GPU: upstream's kernels, by atomics; passes before and after.
#pragma once

#include "torch_scatter/sm80_launch.cuh"

namespace kernelmint::torch_scatter {

template <class Config>
__global__ void __launch_bounds__(kThreads)
    scatter_sm80(const typename Config::Args args, const Info index) {
  using T = element_t<typename Config::dtype>;
  scatter_kernel<T, reduction_of<Config>()>(args.src.template as<const T>(), index,
                                            args.result.template as<T>(), args.E, args.K, args.N,
                                            args.B * args.E * args.K);
}

template <class Config>
__global__ void __launch_bounds__(kThreads)
    scatter_arg_sm80(const typename Config::Args args, const Info index) {
  using T = element_t<typename Config::dtype>;
  scatter_arg_kernel<T>(args.src.template as<const T>(), index, args.result.template as<T>(),
                        args.arg.template as<std::int64_t>(), args.E, args.K, args.N,
                        args.B * args.E * args.K);
}

}  // namespace kernelmint::torch_scatter

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using namespace torch_scatter;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  const std::int64_t size = args.B * args.N * args.K, values = args.B * args.E * args.K;
  LaunchResult done =
      launch_cuda<&begin_result<Config>>(one_thread_each(size), context, args, size);
  if (done.error != nullptr) return done;
  const std::int64_t extents[] = {args.B, args.E, args.K};
  const Info index = info_of(args.index, extents);
  if (values > 0)
    done = launch_cuda<&scatter_sm80<Config>>(one_thread_each(values), context, args, index);
  if constexpr (has_arg<Config>()) {
    if (done.error == nullptr && args.initial.data == nullptr)
      done = launch_cuda<&end_result<Config>>(one_thread_each(size), context, args, size);
    if (done.error == nullptr && values > 0)
      done = launch_cuda<&scatter_arg_sm80<Config>>(one_thread_each(values), context, args, index);
  }
  return done;
}

}  // namespace kernelmint
