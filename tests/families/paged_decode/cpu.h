// A task takes a split of one sequence and head; then one takes the splits of each together.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "dtypes.h"
#include "integers.h"
#include "launch.h"
#include "parallel.h"

namespace kernelmint::paged_decode {
inline namespace KERNELMINT_ISA {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <class Config>
struct Split {
  using T = typename Config::dtype;
  const typename Config::Args& args;

  void operator()(std::int64_t task, int /*worker*/) const {
    const std::int64_t split = task % args.splits;
    const std::int64_t h = task / args.splits % args.H, b = task / args.splits / args.H;
    const std::int64_t length = *args.lengths.template at<const i32>(b);
    const std::int64_t chunk = ceil_div(length, std::int64_t{args.splits});
    const std::int64_t first = split * chunk, last = std::min(first + chunk, length);
    const std::int64_t kv_head = h / (args.H / args.Hk);
    const T* q = args.q.template at<const T>(b, h);
    float* o = args.workspace.partial + task * args.D;
    std::fill_n(o, args.D, 0.0f);
    float greatest = -kInfinity, sum = 0;
    for (std::int64_t j = first; j < last; ++j) {
      const std::int64_t page = *args.page_table.template at<const i32>(b, j / args.page_size);
      const T* k = args.k.template at<const T>(page, j % args.page_size, kv_head);
      const T* v = args.v.template at<const T>(page, j % args.page_size, kv_head);
      float score = 0;
      for (std::int64_t d = 0; d < args.D; ++d) score += q[d] * k[d];
      score *= args.scale;
      const float before = greatest;
      greatest = std::max(greatest, score);
      const float rescale = std::exp(before - greatest), weight = std::exp(score - greatest);
      sum = sum * rescale + weight;
      for (std::int64_t d = 0; d < args.D; ++d) o[d] = o[d] * rescale + weight * v[d];
    }
    for (std::int64_t d = 0; sum > 0 && d < args.D; ++d) o[d] /= sum;
    args.workspace.lse[task] = sum > 0 ? greatest + std::log(sum) : -kInfinity;
  }
};

template <class Config>
struct Combine {
  using T = typename Config::dtype;
  const typename Config::Args& args;

  void operator()(std::int64_t task, int /*worker*/) const {
    const std::int64_t h = task % args.H, b = task / args.H;
    const float* lse = args.workspace.lse + task * args.splits;
    const float* partial = args.workspace.partial + task * args.splits * args.D;
    const float greatest = *std::max_element(lse, lse + args.splits);
    T* o = args.o.template at<T>(b, h);
    std::fill_n(o, args.D, T{});
    float sum = 0;
    for (int s = 0; greatest > -kInfinity && s < args.splits; ++s)
      sum += std::exp(lse[s] - greatest);
    for (int s = 0; sum > 0 && s < args.splits; ++s)
      for (std::int64_t d = 0; d < args.D; ++d)
        o[d] += std::exp(lse[s] - greatest) / sum * partial[s * args.D + d];
    if (args.partial_lse.data != nullptr)
      std::copy_n(lse, args.splits, args.partial_lse.template at<float>(b, h));
  }
};

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::paged_decode

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  const std::int64_t rows = args.B * args.H;
  parallel_for(rows * args.splits, context.num_threads, paged_decode::Split<Config>{args});
  parallel_for(rows, context.num_threads, paged_decode::Combine<Config>{args});
  return {};
}

}  // namespace kernelmint
