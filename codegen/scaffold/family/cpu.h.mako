// z = alpha * x + y on the CPU: a task takes a segment of a row.
#pragma once

#include "cpu_convert.h"
#include "integers.h"
#include "launch.h"
#include "parallel.h"

namespace kernelmint::${family} {
inline namespace KERNELMINT_ISA {

template <class Config>
class ${class_name} {
 public:
  using T = typename Config::dtype;
  using Args = typename Config::Args;

  explicit ${class_name}(const Args& args)
      : args_(args), segments_(ceil_div(args.N, Config::segment)) {}

  std::int64_t tasks() const { return args_.M * segments_; }

  void operator()(std::int64_t task, int /*worker*/) const {
    const std::int64_t row = task / segments_;
    const std::int64_t first = task % segments_ * Config::segment;
    const T* x = args_.x.template at<const T>(row, first);
    const T* y = args_.y.template at<const T>(row, first);
    T* z = args_.z.template at<T>(row, first);
    const std::int64_t left = args_.N - first;
    const int size = static_cast<int>(left < Config::segment ? left : Config::segment);
    int i = 0;
    for (; i + cpu::kLanes <= size; i += cpu::kLanes) combine(x + i, y + i, z + i);
    if (i == size) return;
    T x_tail[cpu::kLanes] = {}, y_tail[cpu::kLanes] = {}, z_tail[cpu::kLanes];
    __builtin_memcpy(x_tail, x + i, (size - i) * sizeof(T));
    __builtin_memcpy(y_tail, y + i, (size - i) * sizeof(T));
    combine(x_tail, y_tail, z_tail);
    __builtin_memcpy(z + i, z_tail, (size - i) * sizeof(T));
  }

 private:
  void combine(const T* x, const T* y, T* z) const {
    cpu::store(z, cpu::fma(cpu::splat(args_.alpha), cpu::load(x), cpu::load(y)));
  }

  const Args& args_;
  std::int64_t segments_;  // each row's
};

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::${family}

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* args, const LaunchContext& context) {
  const ${family}::${class_name}<Config> kernel(*static_cast<const typename Config::Args*>(args));
  parallel_for(kernel.tasks(), context.num_threads, kernel);
  return {};
}

}  // namespace kernelmint
