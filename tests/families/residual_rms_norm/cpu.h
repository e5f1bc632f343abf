// A task takes a row.
#pragma once

#include <cmath>

#include "cpu_convert.h"
#include "launch.h"
#include "parallel.h"

namespace kernelmint::residual_rms_norm {
inline namespace KERNELMINT_ISA {

template <class Config>
struct Row {
  using T = typename Config::dtype;
  const typename Config::Args& args;

  void operator()(std::int64_t row, int /*worker*/) const {
    T* x = args.x.template at<T>(row);
    T* residual = args.residual.template at<T>(row);
    const T* weight = args.weight.template as<const T>();
    float squares = 0;
    each([&](std::int64_t at, int count) {
      const cpu::F32 sum = load(x + at, count) + load(residual + at, count);
      store(residual + at, sum, count);
      for (int i = 0; i < count; ++i) squares += sum[i] * sum[i];
    });
    const float scale = 1 / std::sqrt(squares / static_cast<float>(args.N) + args.eps);
    each([&](std::int64_t at, int count) {
      store(x + at, load(residual + at, count) * scale * load(weight + at, count), count);
    });
  }

 private:
  template <class Function>
  void each(const Function& function) const {
    for (std::int64_t at = 0; at < args.N; at += cpu::kLanes)
      function(at, static_cast<int>(args.N - at < cpu::kLanes ? args.N - at : cpu::kLanes));
  }

  static cpu::F32 load(const T* from, int count) {
    T part[cpu::kLanes] = {};
    __builtin_memcpy(part, from, count * sizeof(T));
    return cpu::load(part);
  }

  static void store(T* to, cpu::F32 v, int count) {
    T part[cpu::kLanes];
    cpu::store(part, v);
    __builtin_memcpy(to, part, count * sizeof(T));
  }
};

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::residual_rms_norm

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  parallel_for(args.M, context.num_threads, residual_rms_norm::Row<Config>{args});
  return {};
}

}  // namespace kernelmint
