// Tests of whether strided tensors share memory.
#pragma once

#include <cstdint>
#include <utility>

#include "torch_bridge.h"

namespace kernelmint {

// The addresses of the first byte of a tensor that has elements, and past its last byte.
std::pair<std::uintptr_t, std::uintptr_t> range_of(const TensorInfo& tensor, int element_size);

// False only if no two elements of `tensor` share an address. The test is conservative: it reports
// some strides whose elements never meet, but no strides that torch makes by slicing and permuting.
bool may_overlap_itself(const TensorInfo& tensor, int element_size);

// False only if the tensors share no byte. The test is exact for tensors whose address ranges are
// apart, and for interleaved slices of one buffer (q, k and v packed along a dimension); it is
// conservative for other strided tensors with intersecting ranges.
bool may_overlap(const TensorInfo& a, int a_size, const TensorInfo& b, int b_size);

}  // namespace kernelmint
