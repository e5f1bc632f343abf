// Reductions over ascending indices on a GPU: upstream's kernels, which add up within a warp or a
// thread and meet in atomics; passes before and after them.
#pragma once

#include "torch_scatter/sm80_launch.cuh"

namespace kernelmint::torch_scatter {

template <class Config>
__global__ void __launch_bounds__(kThreads)
    segment_coo_sm80(const typename Config::Args args, const Info index) {
  using T = element_t<typename Config::dtype>;
  segment_coo_kernel<T, reduction_of<Config>(), true>(args.src.template as<const T>(), index,
                                                      args.result.template as<T>(), args.B * args.E,
                                                      args.N);
}

// kIndices of the index a thread.
template <class Config, int kIndices>
__global__ void __launch_bounds__(kThreads)
    segment_coo_broadcast_sm80(const typename Config::Args args, const Info index) {
  using T = element_t<typename Config::dtype>;
  segment_coo_broadcast_kernel<T, reduction_of<Config>(), kIndices>(
      args.src.template as<const T>(), index, args.result.template as<T>(), args.B * args.E, args.K,
      args.N);
}

template <class Config>
__global__ void __launch_bounds__(kThreads)
    segment_coo_arg_sm80(const typename Config::Args args, const Info index) {
  using T = element_t<typename Config::dtype>;
  segment_coo_arg_broadcast_kernel<T>(
      args.src.template as<const T>(), index, args.result.template as<T>(),
      args.arg.template as<std::int64_t>(), args.B * args.E, args.K, args.N);
}

// How many values a row has, in upstream's dtype: that of src.
template <class Config>
__global__ void __launch_bounds__(kThreads)
    count_coo_sm80(const typename Config::Args args, const Info index,
                   element_t<typename Config::dtype>* counts) {
  using T = element_t<typename Config::dtype>;
  segment_coo_kernel<T, SUM, false>(nullptr, index, counts, args.B * args.E, args.N);
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
  return launch_cuda<&segment_coo_broadcast_sm80<Config, kIndices>>(
      {.grid = {ceil_div(args.B * ceil_div(args.E, kIndices), 8), ceil_div(args.K, 32)},
       .block = {32, 8}},
      context, args, index);
}

}  // namespace kernelmint::torch_scatter

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using namespace torch_scatter;
  using T = element_t<typename Config::dtype>;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  const std::int64_t size = args.B * args.N * args.K;
  LaunchResult done =
      launch_cuda<&begin_result<Config>>(one_thread_each(size), context, args, size);
  if (done.error != nullptr) return done;
  if (args.E > 0) {
    const std::int64_t extents[] = {args.B, args.E};
    const Info index = info_of(args.index, extents);
    const CudaLaunch each = one_thread_each(args.B * args.E);
    const float average = static_cast<float>(args.E) / static_cast<float>(args.N);
    if (args.K == 1)
      done = launch_cuda<&segment_coo_sm80<Config>>(each, context, args, index);
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
      done = launch_cuda<&count_coo_sm80<Config>>(each, context, args, index,
                                                  static_cast<T*>(counts.data));
      if (done.error != nullptr) return done;
      return launch_cuda<&divide_coo_sm80<Config>>(one_thread_each(size), context, args,
                                                   static_cast<T*>(counts.data));
    }
  }
  if constexpr (has_arg<Config>()) {
    if (args.initial.data == nullptr)
      done = launch_cuda<&end_result<Config>>(one_thread_each(size), context, args, size);
    if (done.error != nullptr || args.E == 0) return done;
    const std::int64_t extents[] = {args.B, args.E};
    return launch_cuda<&segment_coo_arg_sm80<Config>>(one_thread_each(args.B * args.E * args.K),
                                                      context, args, info_of(args.index, extents));
  }
  return done;
}

}  // namespace kernelmint
