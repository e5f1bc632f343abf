// Upstream has these codes on the CPU by PyTorch's operators only. This loop is that of its kernel
// for GPUs, with the kernel's own decisions, so that both devices give the same codes.
#pragma once

#include <cmath>
#include <cstring>

#include "bitsandbytes/cpu_blocks.h"
#include "cpu_convert.h"

#define __device__
#include "bnb_decisions.h"
#undef __device__

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  using T = typename Config::dtype;
  const T* x = args.x.template as<const T>();
  u8* codes = args.codes.template as<u8>();
  const auto code = [](float value) {
    return Config::quant_type == Config::quant_type_type::nf4 ? dQuantizeNF4(value)
                                                              : dQuantizeFP4(value);
  };
  const auto quantize = [&](std::int64_t first, std::int64_t count) {
    float values[4096];
    float absmax = 0;
    for (std::int64_t i = 0; i < count; i += cpu::kLanes) {
      T whole[cpu::kLanes] = {};
      const std::int64_t rest = count - i;
      std::memcpy(whole, x + first + i, (rest < cpu::kLanes ? rest : cpu::kLanes) * sizeof(T));
      cpu::store(values + i, cpu::load(whole));
    }
    for (std::int64_t i = 0; i < count; ++i) absmax = std::fmax(absmax, std::fabs(values[i]));
    *args.absmax.template at<float>(first / args.blocksize) = absmax;
    const float inverse = 1 / absmax;
    for (std::int64_t i = 0; i < count; i += 2)
      codes[(first + i) / 2] =
          static_cast<u8>(code(values[i] * inverse) << 4 | code(values[i + 1] * inverse));
  };
  bitsandbytes::for_blocks(args.N, args.blocksize, context, [&](auto first, auto count) {
    for (std::int64_t i = 0; i < count; i += args.blocksize)
      quantize(first + i, i + args.blocksize < count ? args.blocksize : count - i);
  });
  return {};
}

}  // namespace kernelmint
