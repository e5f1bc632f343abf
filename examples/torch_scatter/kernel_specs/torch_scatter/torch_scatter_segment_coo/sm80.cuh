// Reductions over ascending indices on a GPU: upstream's kernels, which add up within a warp or a
// thread and meet in atomics; passes before and after them.
#pragma once

#include "torch_scatter/sm80_launch.cuh"

namespace kernelmint::torch_scatter {

template <class Config, class T = element_t<typename Config::dtype>>
__global__ void segment_coo_sm80(const T* src, const Info index, T* result, std::size_t E,
                                 std::size_t N) {
  segment_coo_kernel<T, reduction_of<Config>(), true>(src, index, result, E, N);
}

// kIndices of the index a thread.
template <class Config, int kIndices, class T = element_t<typename Config::dtype>>
__global__ void segment_coo_broadcast_sm80(const T* src, const Info index, T* result, std::size_t E,
                                           std::size_t K, std::size_t N) {
  segment_coo_broadcast_kernel<T, reduction_of<Config>(), kIndices>(src, index, result, E, K, N);
}

template <class Config, class T = element_t<typename Config::dtype>>
__global__ void segment_coo_arg_sm80(const T* src, const Info index, T* result, std::int64_t* arg,
                                     std::size_t E, std::size_t N) {
  segment_coo_arg_kernel<T>(src, index, result, arg, E, N);
}

template <class Config, class T = element_t<typename Config::dtype>>
__global__ void segment_coo_arg_broadcast_sm80(const T* src, const Info index, T* result,
                                               std::int64_t* arg, std::size_t E, std::size_t K,
                                               std::size_t N) {
  segment_coo_arg_broadcast_kernel<T>(src, index, result, arg, E, K, N);
}

// The number of values of a row, in upstream's dtype: the dtype of src, which is not read.
template <class Config, class T = element_t<typename Config::dtype>>
__global__ void count_coo_sm80(const T* src, const Info index, T* counts, std::size_t E,
                               std::size_t N) {
  segment_coo_kernel<T, SUM, false>(src, index, counts, E, N);
}

template <class Config>
__global__ void __launch_bounds__(kThreads)
    divide_coo_sm80(const typename Config::Args args, element_t<typename Config::dtype>* counts) {
  using T = element_t<typename Config::dtype>;
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= args.B * args.N * args.K) return;
  T* result = args.result.template as<T>() + i;
  const T counted = counts[i / args.K];
  const T count = counted < T(1) ? T(1) : counted;
  if constexpr (std::numeric_limits<T>::is_integer) {  // towards the lesser, as upstream
    const T quotient = *result / count;
    *result = quotient * count > *result ? quotient - 1 : quotient;
  } else {
    *result = *result / count;
  }
}

template <class Config, int kIndices>
LaunchResult launch_broadcast(const typename Config::Args& args, const LaunchContext& context,
                              const Info& index) {
  using T = element_t<typename Config::dtype>;
  return launch_cuda<&segment_coo_broadcast_sm80<Config, kIndices>>(
      {.grid = {ceil_div(args.B * ceil_div(args.E, kIndices), 8), ceil_div(args.K, 32)},
       .block = {32, 8}},
      context, args.src.template as<const T>(), index, args.result.template as<T>(),
      args.B * args.E, args.K, args.N);
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
  const std::int64_t size = args.B * args.N * args.K, indices = args.B * args.E;
  const std::int64_t extents[] = {args.B, args.E};
  const Info index = info_of(args.index, extents, 1);
  LaunchResult done =
      launch_cuda<&begin_result<Config>>(some_each_thread(size), context, args, size);
  if (done.error != nullptr) return done;
  if (args.E > 0) {
    const CudaLaunch each = one_thread_each(indices);
    const float average = static_cast<float>(args.E) / static_cast<float>(args.N);
    if (args.K == 1)
      done = launch_cuda<&segment_coo_sm80<Config>>(each, context, src, index, result, indices,
                                                    args.N);
    else if (average <= 8)
      done = launch_broadcast<Config, 4>(args, context, index);
    else if (average <= 16)
      done = launch_broadcast<Config, 8>(args, context, index);
    else if (average <= 32)
      done = launch_broadcast<Config, 16>(args, context, index);
    else
      done = launch_broadcast<Config, 32>(args, context, index);
    if (done.error != nullptr) return done;
    if constexpr (reduction_of<Config>() == MEAN) {
      const std::size_t bytes = args.B * args.N * sizeof(T);
      const Allocation counts = context.allocate(bytes);
      if (counts.error != nullptr) return {counts.error};
      const DeviceScope device(context.device);
      if (device.error != nullptr) return {device.error};
      const auto stream = static_cast<cudaStream_t>(context.stream);
      if (cudaMemsetAsync(counts.data, 0, bytes, stream) != cudaSuccess)
        return {"the counts cannot be set to zero"};
      done = launch_cuda<&count_coo_sm80<Config>>(each, context, src, index,
                                                  static_cast<T*>(counts.data), indices, args.N);
      if (done.error != nullptr) return done;
      return launch_cuda<&divide_coo_sm80<Config>>(one_thread_each(size), context, args,
                                                   static_cast<T*>(counts.data));
    }
  }
  if constexpr (has_arg<Config>()) {
    if (args.initial.data == nullptr)
      done = launch_cuda<&end_result<Config>>(some_each_thread(size), context, args, size);
    if (done.error != nullptr || args.E == 0) return done;
    auto* arg = args.arg.template as<std::int64_t>();
    const CudaLaunch each = one_thread_each(indices * args.K);
    if (args.K == 1)
      return launch_cuda<&segment_coo_arg_sm80<Config>>(each, context, src, index, result, arg,
                                                        indices, args.N);
    return launch_cuda<&segment_coo_arg_broadcast_sm80<Config>>(each, context, src, index, result,
                                                                arg, indices, args.K, args.N);
  }
  return done;
}

}  // namespace kernelmint
