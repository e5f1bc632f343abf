// Upstream's kernel of the newest elements.
#pragma once

#include "causal_conv1d/sm80_params.cuh"
#include "causal_conv1d_update_kernel.cuh"

namespace kernelmint::causal_conv1d {

// Upstream's traits, by a name that has the configuration's key.
template <class Config>
struct Update
    : Causal_conv1d_update_kernel_traits<64, Config::width, Upstream<typename Config::dtype>,
                                         Upstream<typename Config::weight_dtype>> {};

}  // namespace kernelmint::causal_conv1d

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using namespace causal_conv1d;
  using Traits = Update<Config>;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  ConvParamsBase params = {};
  Filler fill(args, params);
  params.out_ptr = args.y.data;
  params.conv_state_ptr = args.conv_state.data;
  params.conv_state_len = static_cast<int>(args.S);
  params.cache_seqlens = static_cast<std::int32_t*>(address(args.cache_seqlens));
  params.conv_state_indices_ptr = static_cast<std::int32_t*>(address(args.conv_state_indices));
  fill(channel_first(args.x), params.x_batch_stride, params.x_c_stride, params.x_l_stride);
  fill(channel_first(args.y), params.out_batch_stride, params.out_c_stride, params.out_l_stride);
  fill.set(channel_first(args.conv_state), args.N, args.S, params.conv_state_batch_stride,
           params.conv_state_c_stride, params.conv_state_l_stride);
  if (fill.error() != nullptr) return {fill.error()};
  return launch_cuda<&causal_conv1d_update_kernel<Traits, Config::circular>>(
      {.grid = {args.B, ceil_div(args.D, Traits::kNThreads)}, .block = {Traits::kNThreads}},
      context, params);
}

}  // namespace kernelmint
