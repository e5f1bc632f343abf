// The arguments of hstu_bsa, as the kernels of both HSTU families take them.
#pragma once

#include "hstu/problem.h"
#include "integers.h"
#include "launch.h"

namespace kernelmint::hstu_bsa {
#if defined(KERNELMINT_ISA)
inline namespace KERNELMINT_ISA {
#endif

// The checks of max_length that need no x_offsets, which a GPU has.
template <class Args>
LaunchResult check_max_length(const Args& args) {
  const std::int64_t least = ceil_div(args.N, args.E - 1);
  if (args.max_length >= least) return {};
  return {.error = "the longest sequence has at least an even share of the rows",
          .argument = "max_length",
          .value = args.max_length,
          .least = least,
          .most = INT64_MAX};
}

// Returns whether every row lies in one sequence and none is longer than max_length. An offset must
// leave the later sequences room for the rest.
template <class Args>
LaunchResult check_offsets(const Args& args) {
  const auto* offsets = args.x_offsets.template as<const std::int64_t>();
  const std::int64_t longest = args.max_length < args.N ? args.max_length : args.N;
  for (std::int64_t i = 0, previous = 0; i < args.E; previous = offsets[i], ++i) {
    const std::int64_t needed = args.N - (args.E - 1 - i) * longest;
    const std::int64_t reached = i == 0 ? 0 : previous + longest;
    const std::int64_t least = previous < needed ? needed : previous;
    const std::int64_t most = reached < args.N ? reached : args.N;
    if (offsets[i] >= least && offsets[i] <= most) continue;
    return {.error = "the sequences go from the first row to the last, none longer than max_length",
            .argument = "x_offsets",
            .index = i,
            .value = offsets[i],
            .least = least,
            .most = most};
  }
  return {};
}

template <class Args>
LaunchResult read_arguments(hstu::Problem& p, const Args& args, bool is_readable) {
  LaunchResult checked = check_max_length(args);
  if (checked.error == nullptr && is_readable) checked = check_offsets(args);
  const auto rows = [](const ConstTensorView<3>& x) {
    return hstu::Rows<const float>{x.template as<const float>(), 0, x.stride[0], x.stride[1]};
  };
  p.q = rows(args.q);
  p.k = rows(args.k);
  p.v = rows(args.v);
  p.u = rows(args.u);
  p.g_cmp = {args.g_cmp.template as<const float>(), 0, args.g_cmp.stride[0], args.g_cmp.stride[1]};
  p.o = {args.o.template as<float>(), 0, args.o.stride[0], args.o.stride[1]};
  const auto& lists = args.block_indices;  // [N, H, S]
  p.lists = {lists.template as<std::int64_t>(), 0, lists.stride[0], lists.stride[1]};
  p.offsets = args.x_offsets.template as<const std::int64_t>();
  p.sequences = args.E - 1;
  p.heads = args.H;
  p.max_length = args.max_length < args.N ? args.max_length : args.N;
  return checked;
}

#if defined(KERNELMINT_ISA)
}  // namespace KERNELMINT_ISA
#endif
}  // namespace kernelmint::hstu_bsa
