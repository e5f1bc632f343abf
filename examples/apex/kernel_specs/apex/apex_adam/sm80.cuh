// A block takes a chunk. Upstream counts elements in 32 bits if each tensor's fit.
#pragma once

#include <cmath>

#include "apex/sm80_chunks.cuh"

namespace kernelmint::apex {

template <class Config, class Index>
using Functor = AdamFunctor<element_t<typename Config::dtype>, float, Index>;

template <class Config, class Index>
__global__ void apex_adam_sm80(std::int64_t chunk_size, volatile int* noop,
                               TensorListMetadata<4> chunks, Functor<Config, Index> functor,
                               float beta1, float beta2, float beta1_correction,
                               float beta2_correction, float epsilon, float lr, adamMode_t mode,
                               float decay) {
  functor(chunk_size, noop, chunks, beta1, beta2, beta1_correction, beta2_correction, epsilon, lr,
          mode, decay);
}

template <class Config, class Index>
LaunchResult launch_with(const typename Config::Args& args, const LaunchContext& context) {
  float corrections[2] = {1, 1};
  for (int i = 0; i < 2 && args.unbiased; ++i)
    corrections[i] = static_cast<float>(1 - std::pow(args.betas[i], args.step));
  return launch_chunks<TensorListMetadata<4>>(
      args.chunk_size,
      launcher<&apex_adam_sm80<Config, Index>, TensorListMetadata<4>>(
          context, args.chunk_size, nullptr, Functor<Config, Index>{}, args.betas[0], args.betas[1],
          corrections[0], corrections[1], args.epsilon, args.lr, mode_of(args), args.decay),
      args.g, args.p, args.m, args.v);
}

}  // namespace kernelmint::apex

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  for (const auto& g : args.g)
    if (g.extent[0] >= INT_MAX) return apex::launch_with<Config, std::int64_t>(args, context);
  return apex::launch_with<Config, std::int32_t>(args, context);
}

}  // namespace kernelmint
