// Upstream's loop, with a table.
#pragma once

#include <immintrin.h>

#include <cstring>

// clang-format off: upstream's, each after what it needs
#include "bnb_cpu_types.h"
#include "bnb_cpu_dequantize.h"
#include "bitsandbytes/cpu_types.h"
// clang-format on
#include "bitsandbytes/cpu_blocks.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using T = bitsandbytes::Upstream<typename Config::dtype>;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  auto* codes = const_cast<u8*>(args.codes.template as<const u8>());
  auto* code = const_cast<float*>(args.code.template as<const float>());
  bitsandbytes::for_blocks(args.N, args.blocksize, context, [&](auto first, auto count) {
    dequantizeBlockwise8bitCpu<T>(code, codes + first,
                                  args.absmax.template at<const float>(first / args.blocksize),
                                  static_cast<T*>(args.y.data) + first, args.blocksize, count);
  });
  return {};
}

}  // namespace kernelmint
