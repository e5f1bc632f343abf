// The matrix products of attention's backward, in the form that suits the processor and the dtype.
#pragma once

#include <type_traits>

#include "attention/cpu_pair_gradients.h"
#include "attention/cpu_vector_gradients.h"
#include "dtypes.h"

namespace kernelmint::attention_backward {
inline namespace KERNELMINT_ISA {

// Calls `function` with the class of the products.
template <class T, int D, int B_r, int B_c, class Function>
auto with_products(Function function) {
#if defined(KERNELMINT_PAIR_PRODUCTS)
  if constexpr (std::is_same_v<T, bf16>) {
    if (has_pair_products()) return function.template operator()<PairGradients<D, B_r, B_c>>();
  }
#endif
  return function.template operator()<VectorGradients<T, D, B_r, B_c>>();
}

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::attention_backward
