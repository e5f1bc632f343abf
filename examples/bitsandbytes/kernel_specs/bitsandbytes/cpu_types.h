// Upstream's types of 16-bit floats, for ours. A header includes it after upstream's.
#pragma once

#include <type_traits>

#include "dtypes.h"

namespace kernelmint::bitsandbytes {
inline namespace KERNELMINT_ISA {

template <class T>
using Upstream = std::conditional_t<std::is_same_v<T, bf16>, bf16_t,
                                    std::conditional_t<std::is_same_v<T, fp16>, fp16_t, float>>;

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::bitsandbytes
