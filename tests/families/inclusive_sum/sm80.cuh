// CUB's scan, which says itself how much scratch memory it takes.
#pragma once

#include <cub/device/device_scan.cuh>

#include "cuda_launch.cuh"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  const DeviceScope device(context.device);
  if (device.error != nullptr) return {device.error};
  const auto* x = args.x.template as<const float>();
  auto* y = args.y.template as<float>();
  const auto stream = static_cast<cudaStream_t>(context.stream);
  std::size_t bytes = 0;
  cudaError_t status = cub::DeviceScan::InclusiveSum(nullptr, bytes, x, y, args.N, stream);
  if (status != cudaSuccess) return {cudaGetErrorString(status)};
  const Allocation workspace = context.allocate(bytes + args.spare);
  if (workspace.error != nullptr) return {workspace.error};
  status = cub::DeviceScan::InclusiveSum(workspace.data, bytes, x, y, args.N, stream);
  return {status == cudaSuccess ? nullptr : cudaGetErrorString(status)};
}

}  // namespace kernelmint
