// A texture object and host memory, which live until the work that uses them has ended.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "integers.h"
#include "release_after_work.cuh"

namespace kernelmint::lookup {

template <class Config>
__global__ void __launch_bounds__(Config::threads)
    lookup_sm80(const typename Config::Args args, cudaTextureObject_t x, const float* table) {
  const std::int64_t i = blockIdx.x * std::int64_t{Config::threads} + threadIdx.x;
  if (i < args.N)
    *args.y.template at<float>(i) =
        tex1Dfetch<float>(x, static_cast<int>(args.N - 1 - i)) + table[i % 4];
}

template <class Config>
LaunchResult launch_with(const typename Config::Args& args, const LaunchContext& context,
                         const float* table) {
  cudaResourceDesc memory = {};
  memory.resType = cudaResourceTypeLinear;
  memory.res.linear.devPtr = const_cast<void*>(static_cast<const void*>(args.x.data));
  memory.res.linear.desc = cudaCreateChannelDesc<float>();
  memory.res.linear.sizeInBytes = args.N * sizeof(float);
  const cudaTextureDesc reads = {};
  cudaTextureObject_t texture = 0;
  if (const auto status = cudaCreateTextureObject(&texture, &memory, &reads, nullptr))
    return {cudaGetErrorString(status)};
  const LaunchResult result = launch_cuda<&lookup_sm80<Config>>(
      {.grid = {ceil_div(args.N, Config::threads)}, .block = {Config::threads}}, context, args,
      texture, table);
  const LaunchResult later = release_after_work<&cudaDestroyTextureObject>(texture, context);
  return result.error != nullptr ? result : later;
}

}  // namespace kernelmint::lookup

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  const DeviceScope device(context.device);
  if (device.error != nullptr) return {device.error};
  const RelaxedCapture relaxed;
  constexpr std::size_t bytes = 4 * sizeof(float);
  const Allocation table = context.allocate(bytes);
  if (table.error != nullptr) return {table.error};
  float* staged = nullptr;
  if (const auto status = cudaMallocHost(&staged, bytes)) return {cudaGetErrorString(status)};
  for (int i = 0; i < 4; ++i) staged[i] = static_cast<float>(args.first + i);
  const auto status = cudaMemcpyAsync(table.data, staged, bytes, cudaMemcpyHostToDevice,
                                      static_cast<cudaStream_t>(context.stream));
  const LaunchResult later = release_after_work<&cudaFreeHost>(staged, context);
  if (status != cudaSuccess) return {cudaGetErrorString(status)};
  if (later.error != nullptr) return later;
  return lookup::launch_with<Config>(args, context, static_cast<const float*>(table.data));
}

}  // namespace kernelmint
