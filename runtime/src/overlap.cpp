#include "overlap.h"

#include <numeric>

namespace kernelmint {
namespace {

std::uintptr_t begin_of(const TensorInfo& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.data);
}

// The address after the last byte of a tensor that has elements.
std::uintptr_t end_of(const TensorInfo& tensor, int element_size) {
  std::int64_t last = 0;
  for (int i = 0; i < tensor.rank; ++i) last += tensor.strides[i] * (tensor.shape[i] - 1);
  return begin_of(tensor) + (last + 1) * element_size;
}

struct Axis {
  std::int64_t stride, extent;
};

// A tensor as the runs of adjacent bytes that it consists of: `run` bytes at every
// its beginning + sum(i_k * axes[k].stride), 0 <= i_k < axes[k].extent, strides in bytes.
struct Layout {
  std::int64_t run;
  Axis axes[kMaxRank];
  int num_axes = 0;

  Layout(const TensorInfo& tensor, int element_size) : run(element_size) {
    Axis all[kMaxRank];  // innermost first
    int count = 0;
    for (int i = 0; i < tensor.rank; ++i) {
      if (tensor.shape[i] <= 1) continue;
      const Axis axis{tensor.strides[i] * element_size, tensor.shape[i]};
      int at = count++;
      for (; at > 0 && all[at - 1].stride > axis.stride; --at) all[at] = all[at - 1];
      all[at] = axis;
    }
    for (int i = 0; i < count; ++i) {
      if (num_axes == 0 && all[i].stride == run)
        run *= all[i].extent;
      else
        axes[num_axes++] = all[i];
    }
  }
};

}  // namespace

std::pair<std::uintptr_t, std::uintptr_t> range_of(const TensorInfo& tensor, int element_size) {
  return {begin_of(tensor), end_of(tensor, element_size)};
}

bool may_overlap_itself(const TensorInfo& tensor, int element_size) {
  const Layout layout(tensor, element_size);
  std::int64_t span = layout.run;  // bytes from the first to past the last, over the inner axes
  for (int i = 0; i < layout.num_axes; ++i) {
    if (layout.axes[i].stride < span) return true;
    span += layout.axes[i].stride * (layout.axes[i].extent - 1);
  }
  return false;
}

bool may_overlap(const TensorInfo& a, int a_size, const TensorInfo& b, int b_size) {
  if (end_of(a, a_size) <= begin_of(b) || end_of(b, b_size) <= begin_of(a)) return false;
  if (a.numel() == 0 || b.numel() == 0) return false;
  const Layout x(a, a_size), y(b, b_size);
  // Every run of x begins at the same address modulo the greatest common divisor of all outer
  // strides, and so does every run of y: if the two runs are apart modulo it, all runs are.
  std::int64_t period = 0;
  for (int i = 0; i < x.num_axes; ++i) period = std::gcd(period, x.axes[i].stride);
  for (int i = 0; i < y.num_axes; ++i) period = std::gcd(period, y.axes[i].stride);
  if (period == 0) return true;
  const auto difference = static_cast<std::int64_t>(begin_of(b) - begin_of(a));
  const std::int64_t distance = (difference % period + period) % period;
  return distance < x.run || distance + y.run > period;
}

}  // namespace kernelmint
