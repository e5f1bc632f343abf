#pragma once

#include "flash_attn/split.cuh"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  ::flash::Flash_fwd_params params = {};
  flash_attn::set_packed(params, args);
  params.seqused_k = flash_attn::pointer<int>(args.seqused_k.data);
  return flash_attn::launch_split<Config, /*kAppend=*/false>(args, context, params);
}

}  // namespace kernelmint
