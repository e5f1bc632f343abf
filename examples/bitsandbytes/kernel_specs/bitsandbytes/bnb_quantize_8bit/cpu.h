// Upstream's loop, with a table of its table. Upstream compiles it for AVX2 whatever the flags.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

// clang-format off: upstream's, each after what it needs
#include "bnb_cpu_types.h"
#include "bnb_cpu_quantize.h"
#include "bitsandbytes/cpu_types.h"
// clang-format on
#include "bitsandbytes/cpu_blocks.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using T = bitsandbytes::Upstream<typename Config::dtype>;
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
    return {"upstream's quantiser needs a processor with AVX2"};
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  auto* code = const_cast<float*>(args.code.template as<const float>());
  bitsandbytes::for_blocks(args.N, args.blocksize, context, [&](auto first, auto count) {
    quantize_cpu_impl<T>(code, static_cast<const T*>(args.x.data) + first,
                         args.absmax.template at<float>(first / args.blocksize),
                         args.codes.template as<u8>() + first, args.blocksize, count);
  });
  return {};
}

}  // namespace kernelmint
