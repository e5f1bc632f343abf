// The arguments of block_sparse, as the kernels of both HSTU families take them.
#pragma once

#include "hstu/problem.h"
#include "launch.h"

namespace kernelmint::block_sparse {
#if defined(KERNELMINT_ISA)
inline namespace KERNELMINT_ISA {
#endif

template <class Args>
LaunchResult read_arguments(hstu::Problem& p, const Args& args, bool /* is_readable */) {
  const auto rows = [](const ConstTensorView<4>& x) {
    return hstu::Rows<const float>{x.template as<const float>(), x.stride[0], x.stride[1],
                                   x.stride[2]};
  };
  p.q = rows(args.q);
  p.k = rows(args.k);
  p.v = rows(args.v);
  p.u = rows(args.u);
  p.g_cmp = {args.g_cmp.template as<const float>(), args.g_cmp.stride[0], args.g_cmp.stride[1],
             args.g_cmp.stride[2]};
  p.o = {args.o.template as<float>(), args.o.stride[0], args.o.stride[1], args.o.stride[2]};
  const auto& lists = args.block_indices;  // [B, H, T, S]
  p.lists = {lists.template as<std::int64_t>(), lists.stride[0], lists.stride[2], lists.stride[1]};
  p.sequences = args.B;
  p.heads = args.H;
  p.max_length = args.T;
  return {};
}

#if defined(KERNELMINT_ISA)
}  // namespace KERNELMINT_ISA
#endif
}  // namespace kernelmint::block_sparse
