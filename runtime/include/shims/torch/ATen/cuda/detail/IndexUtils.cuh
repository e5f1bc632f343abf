// A shim of PyTorch's header: the parts that foreign kernels use, without PyTorch. (It has no
// getTensorInfo: a launch makes a TensorInfo of its argument's extents and strides.)
#pragma once

#include <ATen/cuda/detail/TensorInfo.cuh>
