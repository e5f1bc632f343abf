// The types with which upstream's templates are instantiated: PyTorch's types in place of ours.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "dtypes.h"

namespace kernelmint::torch_scatter {

// `opmath`: the type in which upstream's kernels of the CPU add up, at::opmath_type.
template <class T>
struct Element {
  using type = T;
  using opmath = T;
};
template <>
struct Element<bf16> {
  using type = c10::BFloat16;
  using opmath = float;
};
template <>
struct Element<fp16> {
  using type = c10::Half;
  using opmath = float;
};

template <class T>
using element_t = typename Element<T>::type;

}  // namespace kernelmint::torch_scatter
