// A block takes a chunk; upstream counts its elements in 32 bits.
#pragma once

#include "apex/sm80_chunks.cuh"

namespace kernelmint::apex {

using Chunks = TensorListMetadata<4>;

template <class Config>
using Functor = AdamCapturableFunctor<element_t<typename Config::dtype>, float>;

template <class Config>
__global__ void apex_adam_capturable_sm80(std::int64_t chunk_size, volatile int* noop,
                                          Chunks chunks, Functor<Config> functor, float beta1,
                                          float beta2, const int* step, int unbiased, float epsilon,
                                          const float* lr, adamMode_t mode, float decay,
                                          const float* inv_scale) {
  functor(chunk_size, noop, chunks, beta1, beta2, step, unbiased, epsilon, lr, mode, decay,
          inv_scale);
}

}  // namespace kernelmint::apex

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using namespace apex;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  for (const auto& g : args.g)
    if (g.extent[0] > INT_MAX)
      return {.error = "upstream's kernel counts elements in 32 bits",
              .argument = "g",
              .value = g.extent[0],
              .most = INT_MAX};
  return launch_chunks<Chunks>(
      args.chunk_size,
      launcher<&apex_adam_capturable_sm80<Config>, Chunks>(
          context, args.chunk_size, args.noop.template as<const int>(), Functor<Config>{},
          args.betas[0], args.betas[1], args.step.template as<const int>(), int{args.unbiased},
          args.epsilon, args.lr.template as<const float>(), mode_of(args), args.decay,
          args.inv_scale.template as<const float>()),
      args.g, args.p, args.m, args.v);
}

}  // namespace kernelmint
