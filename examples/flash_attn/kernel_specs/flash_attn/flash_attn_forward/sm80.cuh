// FlashAttention-2's forward kernel, upstream's device code under a name that says its key.
#pragma once

#include <src/flash_fwd_kernel.h>

#include "flash_attn/params.cuh"

namespace kernelmint::flash_attn {

template <class Config>
using ForwardTraits =
    Flash_fwd_kernel_traits<Config::head_dim, Config::tile_m, Config::tile_n, Config::warps, false,
                            false, Element<typename Config::dtype>>;

template <class Config, class = Element<typename Config::dtype>>
__global__ void flash_attn_forward(const __grid_constant__::flash::Flash_fwd_params params) {
  ::flash::compute_attn<ForwardTraits<Config>, Config::dropout, Config::causal, Config::local,
                        Config::alibi, Config::even_mn, Config::even_k, Config::capped,
                        Config::dmask>(params);
}

}  // namespace kernelmint::flash_attn

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using Traits = flash_attn::ForwardTraits<Config>;
  static_assert(Traits::kSmemSize == Config::smem_bytes && Traits::kNThreads == Config::threads);
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  ::flash::Flash_fwd_params params = {};
  flash_attn::set_packed(params, args);
  flash_attn::fill<Config>(params, args, args.out_, args.softmax_lse.data, args.p_dropout);
  params.seqused_k = flash_attn::pointer<int>(args.seqused_k.data);
  params.leftpad_k = flash_attn::pointer<int>(args.leftpad_k.data);
  params.p_ptr = args.s_dmask.data;
  params.rng_state = args.rng_state.template as<std::uint64_t>();
  if (const auto* rng = args.rng.template as<const std::int64_t>())
    params.philox_args = {static_cast<std::uint64_t>(rng[0]), static_cast<std::uint64_t>(rng[1])};
  return launch_cuda<&flash_attn::flash_attn_forward<Config>>(
      {.grid = {ceil_div(params.seqlen_q, Config::tile_m), params.b, params.h},
       .block = {Config::threads},
       .shared_memory = Config::smem_bytes},
      context, params);
}

}  // namespace kernelmint
