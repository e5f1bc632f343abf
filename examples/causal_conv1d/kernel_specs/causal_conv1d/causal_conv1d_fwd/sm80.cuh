// Upstream's forward kernel of channels whose elements lie side by side.
#pragma once

#include <cub/block/block_load.cuh>
#include <cub/block/block_store.cuh>

#include "causal_conv1d/sm80_params.cuh"
#include "causal_conv1d_fwd_kernel.cuh"

namespace kernelmint::causal_conv1d {

// Upstream's traits, by a name that has the configuration's key.
template <class Config>
struct Forward : Causal_conv1d_fwd_kernel_traits<128, Config::width, Config::vectorised,
                                                 Upstream<typename Config::dtype>,
                                                 Upstream<typename Config::weight_dtype>> {};

}  // namespace kernelmint::causal_conv1d

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using namespace causal_conv1d;
  using Traits = Forward<Config>;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  ConvParamsBase params = {};
  Filler fill(args, params);
  params.out_ptr = args.y.data;
  fill(channel_first(args.x), params.x_batch_stride, params.x_c_stride, params.x_l_stride);
  fill(channel_first(args.y), params.out_batch_stride, params.out_c_stride, params.out_l_stride);
  if (fill.error() != nullptr) return {fill.error()};
  return launch_cuda<&causal_conv1d_fwd_kernel<Traits>>(
      {.grid = {args.B, args.D}, .block = {Traits::kNThreads}, .shared_memory = Traits::kSmemSize},
      context, params);
}

}  // namespace kernelmint
