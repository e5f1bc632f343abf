// Upstream's loop, which has AVX-512's instructions if it is compiled for them.
#pragma once

#include <immintrin.h>

#include <cstring>

// clang-format off: upstream's, each after what it needs
#include "bnb_types.h"
#include "bnb_cpu_types.h"
#include "bnb_cpu_dequantize.h"
#include "bitsandbytes/cpu_types.h"
// clang-format on
#include "bitsandbytes/cpu_blocks.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using T = bitsandbytes::Upstream<typename Config::dtype>;
  constexpr int kData = Config::quant_type == Config::quant_type_type::nf4 ? NF4 : FP4;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  auto* codes = const_cast<u8*>(args.codes.template as<const u8>());
  bitsandbytes::for_blocks(args.n, args.blocksize, context, [&](auto first, auto count) {
    dequantizeBlockwise4bitCpu<T, kData>(
        codes + first / 2, args.absmax.template at<const float>(first / args.blocksize),
        static_cast<T*>(args.y.data) + first, args.blocksize, 1, count);
  });
  return {};
}

}  // namespace kernelmint
