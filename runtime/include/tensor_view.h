// Tensors as kernels see them.
#pragma once

#include <cstdint>
#include <type_traits>

#include "attributes.h"

namespace kernelmint {

// The address of a tensor's first element and its strides, counted in elements. The extents are
// the family's symbols (Args::B, Args::Sq, ...), so no two arguments can disagree on them.
// `data` is null, and the strides are 0, for an optional tensor that the caller did not pass or
// ask for.
template <int Rank, class Memory = void>
struct TensorView {
  Memory* data;
  std::int64_t stride[Rank > 0 ? Rank : 1];

  template <class T>
  KERNELMINT_ALWAYS_INLINE KERNELMINT_HOST_DEVICE T* as() const {
    static_assert(std::is_const_v<T> || !std::is_const_v<Memory>,
                  "an input is read alone, as a const T; one that the kernel changes is declared "
                  "`mutated: true` in family.yaml");
    return static_cast<T*>(data);
  }

  // The element at these indices; indices that are left out are 0.
  template <class T, class... Indices>
  KERNELMINT_ALWAYS_INLINE KERNELMINT_HOST_DEVICE T* at(Indices... indices) const {
    static_assert(sizeof...(Indices) <= Rank);
    T* element = as<T>();
    int dimension = 0;
    ((element += indices * stride[dimension++]), ...);
    return element;
  }
};

// A tensor that the kernel reads.
template <int Rank>
using ConstTensorView = TensorView<Rank, const void>;

}  // namespace kernelmint
