// Tensors as kernels see them.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define KERNELMINT_HOST_DEVICE __host__ __device__
#else
#define KERNELMINT_HOST_DEVICE
#endif

namespace kernelmint {

// The address of a tensor's first element and its strides, counted in elements. The extents are
// the family's symbols (Args::B, Args::Sq, ...), so no two arguments can disagree on them.
// `data` is null for an optional output that the caller did not ask for.
template <int Rank>
struct TensorView {
  void* data;
  std::int64_t stride[Rank > 0 ? Rank : 1];

  template <class T>
  KERNELMINT_HOST_DEVICE T* as() const {
    return static_cast<T*>(data);
  }
};

}  // namespace kernelmint
