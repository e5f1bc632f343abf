// A shim of PyTorch's header: the parts that foreign kernels use, without PyTorch.
#pragma once

#include <c10/util/Exception.h>

#define MAX_TENSORINFO_DIMS 25

namespace at::cuda::detail {

// A tensor as a kernel's argument.
template <class T, class Index>
struct TensorInfo {
  TensorInfo() = default;
  TensorInfo(T* data, int dims, const Index* from_sizes, const Index* from_strides)
      : data(data), dims(dims) {
    TORCH_CHECK(dims < MAX_TENSORINFO_DIMS, "a tensor may have at most 24 dimensions");
    for (int i = 0; i < dims; ++i) sizes[i] = from_sizes[i];
    for (int i = 0; i < dims; ++i) strides[i] = from_strides[i];
  }

  // Leaves out dimensions of extent 1 and joins dimensions that lie as one, but for dimension
  // `excluded`. Returns its new place, -1 of none, 0 of a point.
  int collapseDims(int excluded = -1) {
    int kept = 0, place = -1;
    for (int i = 0; i < dims; ++i) {
      const Index size = sizes[i], stride = strides[i];
      if (i != excluded && size == 1) continue;
      const bool is_joined =
          i != excluded && kept > 0 && kept - 1 != place && strides[kept - 1] == size * stride;
      if (is_joined)
        sizes[kept - 1] *= size;
      else
        sizes[kept++] = size;
      strides[kept - 1] = stride;
      if (i == excluded) place = kept - 1;
    }
    if (kept == 0) place = 0, kept = 1, sizes[0] = strides[0] = 1;
    dims = kept;
    return place;
  }

  T* data = nullptr;
  Index sizes[MAX_TENSORINFO_DIMS];
  Index strides[MAX_TENSORINFO_DIMS];
  int dims = 0;
};

// The offset, in elements, of the one at `index` of a tensor of kDims dimensions; -1: of `dims`.
template <class T, class Index, int kDims>
struct IndexToOffset {
  static C10_HOST_DEVICE Index get(Index index, const TensorInfo<T, Index>& info) {
    Index offset = 0;
    for (int i = (kDims == -1 ? info.dims : kDims) - 1; i > 0; --i) {
      offset += index % info.sizes[i] * info.strides[i];
      index /= info.sizes[i];
    }
    return offset + index * info.strides[0];
  }
};

}  // namespace at::cuda::detail
