// Values copied between pointers on a GPU: upstream's kernels, four threads or more a row.
#pragma once

#include "torch_scatter/sm80_launch.cuh"

namespace kernelmint::torch_scatter {

constexpr int kThreadsOfRow = 4;

template <class Config>
__global__ void __launch_bounds__(kThreads)
    gather_csr_sm80(const typename Config::Args args, const Info indptr, std::size_t rows) {
  using T = element_t<typename Config::dtype>;
  gather_csr_kernel<T, kThreadsOfRow>(args.src.template as<const T>(), indptr,
                                      args.result.template as<T>(), rows, args.E);
}

template <class Config>
__global__ void __launch_bounds__(kThreads)
    gather_csr_broadcast_sm80(const typename Config::Args args, const Info indptr,
                              std::size_t rows) {
  using T = element_t<typename Config::dtype>;
  gather_csr_broadcast_kernel<T>(args.src.template as<const T>(), indptr,
                                 args.result.template as<T>(), rows, args.K, args.E);
}

}  // namespace kernelmint::torch_scatter

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using namespace torch_scatter;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  const std::int64_t extents[] = {args.B, args.P};
  const Info indptr = info_of(args.indptr, extents);
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
                                                 args, indptr, rows);
  return launch_cuda<&gather_csr_broadcast_sm80<Config>>(one_thread_each(rows * args.K), context,
                                                         args, indptr, rows);
}

}  // namespace kernelmint
