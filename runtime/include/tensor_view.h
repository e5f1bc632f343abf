// Tensors as kernels see them.
#pragma once

#include <cstdint>

#include "attributes.h"

namespace kernelmint {

// The address of a tensor's first element and its strides, counted in elements. The extents are
// the family's symbols (Args::B, Args::Sq, ...), so no two arguments can disagree on them.
// `data` is null for an optional output that the caller did not ask for.
template <int Rank>
struct TensorView {
  void* data;
  std::int64_t stride[Rank > 0 ? Rank : 1];

  template <class T>
  KERNELMINT_ALWAYS_INLINE KERNELMINT_HOST_DEVICE T* as() const {
    return static_cast<T*>(data);
  }

  // The element at these indices; those that are left out are 0.
  template <class T, class... Indices>
  KERNELMINT_ALWAYS_INLINE KERNELMINT_HOST_DEVICE T* at(Indices... indices) const {
    static_assert(sizeof...(Indices) <= Rank);
    T* element = as<T>();
    int dimension = 0;
    ((element += indices * stride[dimension++]), ...);
    return element;
  }
};

}  // namespace kernelmint
