#pragma once

#include "flash_attn/split.cuh"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  ::flash::Flash_fwd_params params = {};
  params.b = static_cast<int>(args.B);
  flash_attn::set(args.k_new, params.knew_ptr, params.knew_batch_stride, params.knew_row_stride,
                  params.knew_head_stride);
  flash_attn::set(args.v_new, params.vnew_ptr, params.vnew_batch_stride, params.vnew_row_stride,
                  params.vnew_head_stride);
  params.seqlen_knew = static_cast<int>(args.Sn);
  params.rotary_cos_ptr = flash_attn::pointer(args.rotary_cos.data);
  params.rotary_sin_ptr = flash_attn::pointer(args.rotary_sin.data);
  params.rotary_dim = static_cast<int>(2 * args.R);
  params.is_rotary_interleaved = args.rotary_interleaved;
  return flash_attn::launch_split<Config, /*kAppend=*/true>(args, context, params);
}

}  // namespace kernelmint
