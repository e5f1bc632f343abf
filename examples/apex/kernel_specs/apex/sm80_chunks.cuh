// Launches for GPUs: upstream's functors, which kernels of a configuration call as upstream's
// multi_tensor_apply_kernel does, over the chunks of a call's lists.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cassert>
#include <climits>

#include "cuda_launch.cuh"
#include "dtypes.h"
#include "tensor_chunks.cuh"

// clang-format off: upstream's, each after what it needs
#include "apex_lists.cuh"
#include "apex_adam.cuh"
// clang-format on

namespace kernelmint::apex {

// PyTorch's types in place of ours.
template <class T>
struct Element {
  using type = T;
};
template <>
struct Element<bf16> {
  using type = c10::BFloat16;
};
template <>
struct Element<fp16> {
  using type = c10::Half;
};
template <class T>
using element_t = typename Element<T>::type;

template <class Args>
adamMode_t mode_of(const Args& args) {
  return args.mode == Args::mode_type::l2 ? ADAM_MODE_0 : ADAM_MODE_1;
}

// The launch of a kernel whose parameters are those of upstream's multi_tensor_apply_kernel: the
// chunks' size, the flag, the chunks, the functor, and the functor's own.
template <auto kKernel, class Chunks, class... Parameters>
auto launcher(const LaunchContext& context, std::int64_t chunk_size, const int* noop,
              Parameters... parameters) {
  return [=, &context](const Chunks& chunks, int blocks) {
    return launch_cuda<kKernel>({.grid = {blocks}, .block = {BLOCK_SIZE}}, context, chunk_size,
                                const_cast<int*>(noop), chunks, parameters...);
  };
}

}  // namespace kernelmint::apex
