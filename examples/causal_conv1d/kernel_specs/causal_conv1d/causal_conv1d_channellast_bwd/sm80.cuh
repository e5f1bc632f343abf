// Upstream's backward kernel of channels that lie side by side.
#pragma once

#include "causal_conv1d/sm80_sums.cuh"
#include "causal_conv1d_channellast_bwd_kernel.cuh"

namespace kernelmint::causal_conv1d {

// Upstream's traits, by a name that has the configuration's key.
template <class Config>
struct ChannellastBackward
    : Causal_conv1d_channellast_bwd_kernel_traits<
          128, Config::width, Config::chunk, Config::with_silu, /*kIsVecLoad=*/true,
          Upstream<typename Config::dtype>, Upstream<typename Config::weight_dtype>> {};

}  // namespace kernelmint::causal_conv1d

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using namespace causal_conv1d;
  using Traits = ChannellastBackward<Config>;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  ConvParamsBwd params = {};
  Filler fill(args, params);
  params.seq_idx_ptr = address(args.seq_idx);
  params.initial_states_ptr = address(args.initial_states);
  params.dinitial_states_ptr = args.dinitial_states.data;
  params.dfinal_states_ptr = address(args.dfinal_states);
  fill(channel_last(args.x), params.x_batch_stride, params.x_c_stride, params.x_l_stride);
  fill(channel_last(args.dy), params.dout_batch_stride, params.dout_c_stride, params.dout_l_stride);
  fill(channel_last(args.dx), params.dx_batch_stride, params.dx_c_stride, params.dx_l_stride);
  fill(channel_last(args.initial_states), params.initial_states_batch_stride,
       params.initial_states_c_stride, params.initial_states_l_stride);
  fill(channel_last(args.dinitial_states), params.dinitial_states_batch_stride,
       params.dinitial_states_c_stride, params.dinitial_states_l_stride);
  fill(channel_last(args.dfinal_states), params.dfinal_states_batch_stride,
       params.dfinal_states_c_stride, params.dfinal_states_l_stride);
  if (fill.error() != nullptr) return {fill.error()};
  const std::int64_t chunks = ceil_div(args.L, Traits::kChunkSizeL);
  params.dweight_workspace_batch_stride = static_cast<std::uint32_t>(chunks * args.D * args.W);
  params.dbias_workspace_batch_stride = static_cast<std::uint32_t>(chunks * args.D);
  return launch_backward<&causal_conv1d_channellast_bwd_kernel<
                             Traits, Config::has_seq_idx, Config::has_dfinal, Config::in_order>,
                         Config>({.grid = {args.B, chunks, ceil_div(args.D, Traits::kNEltsPerRow)},
                                  .block = {Traits::kNThreads}},
                                 context, args, Config::in_order ? args.B * chunks : 1, params);
}

}  // namespace kernelmint
