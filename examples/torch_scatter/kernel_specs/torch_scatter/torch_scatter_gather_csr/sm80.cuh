// Values copied between pointers on a GPU: upstream's kernels, four threads or more a row.
#pragma once

#include "torch_scatter/sm80_launch.cuh"

namespace kernelmint::torch_scatter {

constexpr int kThreadsOfRow = 4;

template <class Config, class T = element_t<typename Config::dtype>>
__global__ void gather_csr_sm80(const T* src, const Info indptr, T* result, std::size_t rows,
                                std::size_t E) {
  gather_csr_kernel<T, kThreadsOfRow>(src, indptr, result, rows, E);
}

template <class Config, class T = element_t<typename Config::dtype>>
__global__ void gather_csr_broadcast_sm80(const T* src, const Info indptr, T* result,
                                          std::size_t rows, std::size_t K, std::size_t E) {
  gather_csr_broadcast_kernel<T>(src, indptr, result, rows, K, E);
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
  const std::int64_t extents[] = {args.B, args.P};
  const Info indptr = info_of(args.indptr, extents, 1);
  const std::size_t rows = args.B * args.N;
  if (args.zeroed) {
    const DeviceScope device(context.device);
    if (device.error != nullptr) return {device.error};
    const std::size_t bytes = args.B * args.E * args.K * sizeof(typename Config::dtype);
    const auto stream = static_cast<cudaStream_t>(context.stream);
    if (cudaMemsetAsync(args.result.data, 0, bytes, stream) != cudaSuccess)
      return {"the result cannot be set to zero"};
  }
  if (rows == 0) return {};
  if (args.K == 1)
    return launch_cuda<&gather_csr_sm80<Config>>(one_thread_each(kThreadsOfRow * rows), context,
                                                 src, indptr, result, rows, args.E);
  return launch_cuda<&gather_csr_broadcast_sm80<Config>>(one_thread_each(rows * args.K), context,
                                                         src, indptr, result, rows, args.K, args.E);
}

}  // namespace kernelmint
