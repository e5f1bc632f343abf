// The two matrix products of attention on AMX tiles.
#pragma once

#include "flash_forward/cpu_vector_products.h"

namespace kernelmint::flash_forward {
inline namespace KERNELMINT_ISA {

template <class T, int D, int B_r, int B_c>
using BestProducts = VectorProducts<T, D, B_r, B_c>;

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::flash_forward
