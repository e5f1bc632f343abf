// The two matrix products of attention, in the form that suits the processor and the dtype.
#pragma once

#include "attention/cpu_direct_products.h"
#include "attention/cpu_tile_products.h"
#include "attention/cpu_vector_products.h"
#include "dtypes.h"

namespace kernelmint::attention {
inline namespace KERNELMINT_ISA {

// Tiles if the processor has them and the dtype splits into few enough parts that they can
// multiply.
template <class T, int D, int B_r, int B_c>
struct ProductsFor {
  using type = VectorProducts<T, D, B_r, B_c>;
};
#if defined(KERNELMINT_AMX_TILES)
template <int D, int B_r, int B_c>
struct ProductsFor<bf16, D, B_r, B_c> {
  using type = TileProducts<bf16, D, B_r, B_c>;
};
template <int D, int B_r, int B_c>
struct ProductsFor<fp16, D, B_r, B_c> {
  using type = TileProducts<fp16, D, B_r, B_c>;
};
#endif

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::attention
