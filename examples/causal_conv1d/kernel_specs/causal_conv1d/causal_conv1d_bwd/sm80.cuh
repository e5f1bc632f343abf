// Upstream's backward kernel of channels whose elements lie side by side.
#pragma once

#include <cub/block/block_load.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_store.cuh>

#include "causal_conv1d/sm80_sums.cuh"
#include "causal_conv1d_bwd_kernel.cuh"

namespace kernelmint::causal_conv1d {

// Upstream's traits, by a name that has the configuration's key.
template <class Config>
struct Backward
    : Causal_conv1d_bwd_kernel_traits<128, Config::width, Config::with_silu, Config::vectorised,
                                      Upstream<typename Config::dtype>,
                                      Upstream<typename Config::weight_dtype>> {};

}  // namespace kernelmint::causal_conv1d

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using namespace causal_conv1d;
  using Traits = Backward<Config>;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  ConvParamsBwd params = {};
  Filler fill(args, params);
  fill(channel_first(args.x), params.x_batch_stride, params.x_c_stride, params.x_l_stride);
  fill(channel_first(args.dy), params.dout_batch_stride, params.dout_c_stride,
       params.dout_l_stride);
  fill(channel_first(args.dx), params.dx_batch_stride, params.dx_c_stride, params.dx_l_stride);
  if (fill.error() != nullptr) return {fill.error()};
  params.dweight_workspace_batch_stride = static_cast<std::uint32_t>(args.D * args.W);
  params.dbias_workspace_batch_stride = static_cast<std::uint32_t>(args.D);
  return launch_backward<&causal_conv1d_bwd_kernel<Traits, Config::in_order>, Config>(
      {.grid = {args.B, args.D}, .block = {Traits::kNThreads}, .shared_memory = Traits::kSmemSize},
      context, args, Config::in_order ? args.B : 1, params);
}

}  // namespace kernelmint
