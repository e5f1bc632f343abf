// Reductions between pointers on a GPU: upstream's kernels, a row or an element of it a thread.
#pragma once

#include "torch_scatter/sm80_launch.cuh"

namespace kernelmint::torch_scatter {

template <class Config, class T = element_t<typename Config::dtype>>
__global__ void segment_csr_sm80(const T* src, const Info indptr, T* result, std::int64_t* arg,
                                 std::size_t rows, std::size_t E) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (has_arg<Config>() && i < rows) arg[i] = E;  // this thread's row
  segment_csr_kernel<T, reduction_of<Config>(), 1>(src, indptr, result, arg, rows, E);
}

template <class Config, class T = element_t<typename Config::dtype>>
__global__ void segment_csr_broadcast_sm80(const T* src, const Info indptr, T* result,
                                           std::int64_t* arg, std::size_t rows, std::size_t K,
                                           std::size_t E) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (has_arg<Config>() && i < rows * K) arg[i] = E;  // this thread's element
  segment_csr_broadcast_kernel<T, reduction_of<Config>()>(src, indptr, result, arg, rows, K, E);
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
  auto* arg = args.arg.template as<std::int64_t>();
  const std::int64_t extents[] = {args.B, args.P};
  const Info indptr = info_of(args.indptr, extents, 1);
  const std::size_t rows = args.B * (args.P - 1);
  if (args.K == 1)
    return launch_cuda<&segment_csr_sm80<Config>>(one_thread_each(rows), context, src, indptr,
                                                  result, arg, rows, args.E);
  return launch_cuda<&segment_csr_broadcast_sm80<Config>>(
      one_thread_each(rows * args.K), context, src, indptr, result, arg, rows, args.K, args.E);
}

}  // namespace kernelmint
