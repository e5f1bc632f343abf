// Values at indices on a GPU: upstream's kernels, an element a thread.
#pragma once

#include "torch_scatter/sm80_launch.cuh"

namespace kernelmint::torch_scatter {

template <class Config, class T = element_t<typename Config::dtype>>
__global__ void gather_coo_sm80(const T* src, const Info index, T* result, std::size_t E,
                                std::size_t N) {
  gather_coo_kernel<T>(src, index, result, E, N);
}

template <class Config, class T = element_t<typename Config::dtype>>
__global__ void gather_coo_broadcast_sm80(const T* src, const Info index, T* result, std::size_t E,
                                          std::size_t K, std::size_t N) {
  gather_coo_broadcast_kernel<T>(src, index, result, E, K, N);
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
  const std::int64_t extents[] = {args.B, args.E};
  const Info index = info_of(args.index, extents, 1);
  const CudaLaunch each = one_thread_each(args.B * args.E * args.K);
  if (args.K == 1)
    return launch_cuda<&gather_coo_sm80<Config>>(each, context, src, index, result, args.B * args.E,
                                                 args.N);
  return launch_cuda<&gather_coo_broadcast_sm80<Config>>(each, context, src, index, result,
                                                         args.B * args.E, args.K, args.N);
}

}  // namespace kernelmint
