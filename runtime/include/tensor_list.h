// Lists of tensors as launches see them.
#pragma once

#include <cstdint>

#include "attributes.h"
#include "tensor_view.h"

namespace kernelmint {

// A tensor of a list: its address, strides and extents.
template <int Rank, class Memory = void>
struct ListedTensor : TensorView<Rank, Memory> {
  std::int64_t extent[Rank > 0 ? Rank : 1];
};

// A list of tensors. They are described in the host's memory, until the launch returns: a launch
// for a GPU copies the addresses and extents that its kernel needs into the kernel's parameters
// (tensor_chunks.cuh).
template <int Rank, class Memory = void>
struct TensorList {
  const ListedTensor<Rank, Memory>* tensors;
  std::int64_t size;

  KERNELMINT_ALWAYS_INLINE const ListedTensor<Rank, Memory>& operator[](std::int64_t i) const {
    return tensors[i];
  }
  KERNELMINT_ALWAYS_INLINE const ListedTensor<Rank, Memory>* begin() const { return tensors; }
  KERNELMINT_ALWAYS_INLINE const ListedTensor<Rank, Memory>* end() const { return tensors + size; }
};

// A list of tensors that the kernel reads.
template <int Rank>
using ConstTensorList = TensorList<Rank, const void>;

}  // namespace kernelmint
