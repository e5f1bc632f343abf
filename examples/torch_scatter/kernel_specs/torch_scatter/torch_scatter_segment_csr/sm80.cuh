// Reductions between pointers on a GPU: upstream's kernels, a row or an element of it a thread.
#pragma once

#include "torch_scatter/sm80_launch.cuh"

namespace kernelmint::torch_scatter {

template <class Config>
__global__ void __launch_bounds__(kThreads)
    segment_csr_sm80(const typename Config::Args args, const Info indptr, std::size_t rows) {
  using T = element_t<typename Config::dtype>;
  T* result = args.result.template as<T>();
  auto* arg = args.arg.template as<std::int64_t>();
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (has_arg<Config>() && i < rows) arg[i] = args.E;  // of this thread's row
  segment_csr_kernel<T, reduction_of<Config>(), 1>(args.src.template as<const T>(), indptr, result,
                                                   arg, rows, args.E);
}

template <class Config>
__global__ void __launch_bounds__(kThreads)
    segment_csr_broadcast_sm80(const typename Config::Args args, const Info indptr,
                               std::size_t rows) {
  using T = element_t<typename Config::dtype>;
  T* result = args.result.template as<T>();
  auto* arg = args.arg.template as<std::int64_t>();
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (has_arg<Config>() && i < rows * args.K) arg[i] = args.E;  // of this thread's element
  segment_csr_broadcast_kernel<T, reduction_of<Config>()>(args.src.template as<const T>(), indptr,
                                                          result, arg, rows, args.K, args.E);
}

}  // namespace kernelmint::torch_scatter

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using namespace torch_scatter;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  const std::int64_t extents[] = {args.B, args.P};
  const Info indptr = info_of(args.indptr, extents);
  const std::size_t rows = args.B * (args.P - 1);
  if (args.K == 1)
    return launch_cuda<&segment_csr_sm80<Config>>(one_thread_each(rows), context, args, indptr,
                                                  rows);
  return launch_cuda<&segment_csr_broadcast_sm80<Config>>(one_thread_each(rows * args.K), context,
                                                          args, indptr, rows);
}

}  // namespace kernelmint
