#pragma once

#include "foreign_axpy/axpy.h"
#include "launch.h"
#include "twice.h"

namespace kernelmint {

#if defined(__AVX2__)
constexpr bool kIsAvx2 = true;
#else
constexpr bool kIsAvx2 = false;
#endif

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext&) {
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  if (!axpy_is_fast_math()) return {"axpy.cpp was compiled without cpu.yaml's flags"};
#if !defined(__FAST_MATH__)
  return {"the shard was compiled without cpu.yaml's flags"};
#endif
  if (has_avx2() != kIsAvx2) return {"twice.cu was compiled for another instruction set"};
  if (axpy_has_avx2() != kIsAvx2) return {"axpy.cpp was compiled for another instruction set"};
  float* z = args.z.template as<float>();
  axpy(args.alpha, args.x.template as<const float>(), args.y.template as<const float>(), z, args.N);
  if (Config::twice)
    for (std::int64_t i = 0; i < args.N; ++i) z[i] = twice(z[i]);
  return {};
}

}  // namespace kernelmint
