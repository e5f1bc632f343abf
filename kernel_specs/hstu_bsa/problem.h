// The arguments of hstu_bsa, as the kernels of both HSTU families take them.
#pragma once

#include "hstu/block_sparse.h"

namespace kernelmint::hstu_bsa {
#if defined(KERNELMINT_ISA)
inline namespace KERNELMINT_ISA {
#endif

template <class Args>
hstu::Problem problem(const Args& args) {
  const auto rows = [](const TensorView<3>& x) {
    return hstu::Rows<const float>{x.template as<const float>(), 0, x.stride[0], x.stride[1]};
  };
  hstu::Problem p{};
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
  p.max_length = args.max_length;
  hstu::take_scratch(p, args);
  return p;
}

#if defined(KERNELMINT_ISA)
}  // namespace KERNELMINT_ISA
#endif
}  // namespace kernelmint::hstu_bsa
