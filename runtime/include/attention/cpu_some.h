// Rows whose last vector is not whole.
#pragma once

#include "cpu_convert.h"
#include "cpu_vector.h"

namespace kernelmint::attention {
inline namespace KERNELMINT_ISA {

using namespace kernelmint::cpu;

// The first `count` elements from memory that ends with them, and zeros after them.
template <class T>
KERNELMINT_ALWAYS_INLINE F32 load_some(const T* from, std::int64_t count) {
  if (count >= kLanes) return load(from);
  T padded[kLanes] = {};
  __builtin_memcpy(padded, from, static_cast<std::size_t>(count) * sizeof(T));
  return load(padded);
}

template <class T>
KERNELMINT_ALWAYS_INLINE void store_some(T* to, F32 v, std::int64_t count) {
  if (count >= kLanes) return store(to, v);
  T padded[kLanes];
  store(padded, v);
  __builtin_memcpy(to, padded, static_cast<std::size_t>(count) * sizeof(T));
}

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::attention
