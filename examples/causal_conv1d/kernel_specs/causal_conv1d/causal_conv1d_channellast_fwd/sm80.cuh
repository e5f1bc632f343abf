// Upstream's forward kernel of channels that lie side by side.
#pragma once

#include "causal_conv1d/sm80_params.cuh"
#include "causal_conv1d_channellast_fwd_kernel.cuh"

namespace kernelmint::causal_conv1d {

// Upstream's traits, by a name that has the configuration's key.
template <class Config>
struct ChannellastForward
    : Causal_conv1d_channellast_fwd_kernel_traits<128, Config::width, /*kChunkSizeL=*/64,
                                                  /*kIsVecLoad=*/true,
                                                  Upstream<typename Config::dtype>,
                                                  Upstream<typename Config::weight_dtype>> {};

}  // namespace kernelmint::causal_conv1d

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using namespace causal_conv1d;
  using Traits = ChannellastForward<Config>;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  ConvParamsBase params = {};
  Filler fill(args, params);
  params.out_ptr = args.y.data;
  params.seq_idx_ptr = address(args.seq_idx);
  params.initial_states_ptr = address(args.initial_states);
  params.final_states_ptr = args.final_states.data;
  fill(channel_last(args.x), params.x_batch_stride, params.x_c_stride, params.x_l_stride);
  fill(channel_last(args.y), params.out_batch_stride, params.out_c_stride, params.out_l_stride);
  fill(channel_last(args.initial_states), params.initial_states_batch_stride,
       params.initial_states_c_stride, params.initial_states_l_stride);
  fill(channel_last(args.final_states), params.final_states_batch_stride,
       params.final_states_c_stride, params.final_states_l_stride);
  if (fill.error() != nullptr) return {fill.error()};
  return launch_cuda<&causal_conv1d_channellast_fwd_kernel<Traits, Config::has_seq_idx>>(
      {.grid = {args.B, ceil_div(args.L, Traits::kChunkSizeL),
                ceil_div(args.D, Traits::kNEltsPerRow)},
       .block = {Traits::kNThreads}},
      context, params);
}

}  // namespace kernelmint
