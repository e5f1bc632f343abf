// A shim of PyTorch's header: the parts that foreign kernels use, without PyTorch.
#pragma once

#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <cuda_runtime.h>

#include <tuple>

namespace at::cuda::philox {

// The seed and the offset.
inline __host__ __device__ std::tuple<std::uint64_t, std::uint64_t> unpack(PhiloxCudaState state) {
  if (!state.captured_) return {state.seed_.val, state.offset_.val};
  return {static_cast<std::uint64_t>(*state.seed_.ptr),
          static_cast<std::uint64_t>(*state.offset_.ptr) + state.offset_intragraph_};
}

}  // namespace at::cuda::philox
