// A task takes the tensors at a place of the lists.
#pragma once

#include <cstdint>

#include "cpu_convert.h"
#include "launch.h"
#include "parallel.h"

namespace kernelmint::add_scaled {
inline namespace KERNELMINT_ISA {

template <class Config>
void add(const typename Config::Args& args, std::int64_t place) {
  using T = typename Config::dtype;
  T* y = args.y[place].template as<T>();
  const T* x = args.x[place].template as<const T>();
  const std::int64_t size = args.y[place].extent[0];
  for (std::int64_t at = 0; at < size; at += cpu::kLanes) {
    const std::int64_t left = size - at;
    const std::size_t bytes = (left < cpu::kLanes ? left : cpu::kLanes) * sizeof(T);
    T of_x[cpu::kLanes] = {}, of_y[cpu::kLanes] = {};
    __builtin_memcpy(of_x, x + at, bytes);
    __builtin_memcpy(of_y, y + at, bytes);
    cpu::store(of_y, args.factors[0] * cpu::load(of_x) + args.factors[1] * cpu::load(of_y));
    __builtin_memcpy(y + at, of_y, bytes);
  }
}

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::add_scaled

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  parallel_for(args.L, context.num_threads,
               [&](std::int64_t place, int) { add_scaled::add<Config>(args, place); });
  return {};
}

}  // namespace kernelmint
