// Values at indices on a GPU: upstream's kernels, an element a thread.
#pragma once

#include "torch_scatter/sm80_launch.cuh"

namespace kernelmint::torch_scatter {

template <class Config>
__global__ void __launch_bounds__(kThreads)
    gather_coo_sm80(const typename Config::Args args, const Info index) {
  using T = element_t<typename Config::dtype>;
  gather_coo_kernel<T>(args.src.template as<const T>(), index, args.result.template as<T>(),
                       args.B * args.E, args.N);
}

template <class Config>
__global__ void __launch_bounds__(kThreads)
    gather_coo_broadcast_sm80(const typename Config::Args args, const Info index) {
  using T = element_t<typename Config::dtype>;
  gather_coo_broadcast_kernel<T>(args.src.template as<const T>(), index,
                                 args.result.template as<T>(), args.B * args.E, args.K, args.N);
}

}  // namespace kernelmint::torch_scatter

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using namespace torch_scatter;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  const std::int64_t extents[] = {args.B, args.E};
  const Info index = info_of(args.index, extents);
  const CudaLaunch each = one_thread_each(args.B * args.E * args.K);
  return args.K == 1 ? launch_cuda<&gather_coo_sm80<Config>>(each, context, args, index)
                     : launch_cuda<&gather_coo_broadcast_sm80<Config>>(each, context, args, index);
}

}  // namespace kernelmint
