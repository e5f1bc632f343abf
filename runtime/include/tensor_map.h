// Tensor maps, which tell the tensor memory accelerator of compute capability 9.0 where a tensor
// lies and which boxes of it are copied. CUDA C++ Programming Guide, "Tensor Memory Access";
// driver API, cuTensorMapEncodeTiled.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "driver_function.h"
#include "dtypes.h"
#include "launch.h"

namespace kernelmint {

// One dimension of a tensor: its extent, its stride in elements, and how much of it a box has.
struct TensorMapDimension {
  std::int64_t extent, stride;
  int box = 1;
};

// All that a map is made of, beside its type.
template <int kOuter>
struct TensorMapKey {
  const void* data;
  std::int64_t inner, extents[kOuter], strides[kOuter];
  int boxes[kOuter], device, columns;

  bool operator==(const TensorMapKey&) const = default;

  std::size_t hash() const {  // by the address: tensors of a call have their own
    return reinterpret_cast<std::uintptr_t>(data) / 16 * 0x9e3779b97f4a7c15u >> 32;
  }
};

// The map of a tensor of 16-bit elements whose innermost dimension has `inner` elements, stride 1,
// for boxes of 64 of these, or 32, on `device`, the current one. In shared memory such a row of a
// box takes 128 or 64 bytes, swizzled. What a box has outside the tensor is read as zeros and is
// not written. Strides are multiples of 16 bytes below 2^40, extents at least 1. Each thread keeps
// the maps it made last: memory is used again, and the driver takes longer than a comparison.
template <class Element, int kOuter>
LaunchResult encode_tensor_map(CUtensorMap& map, const void* data, std::int64_t inner,
                               const TensorMapDimension (&outer)[kOuter], int device,
                               int columns = 64) {
  static_assert(std::is_same_v<Element, bf16> || std::is_same_v<Element, fp16>);
  struct Made {
    bool is_known;
    TensorMapKey<kOuter> key;
    CUtensorMap map;
  };
  constexpr std::size_t kKept = 64;
  static thread_local Made kept[kKept];
  constexpr auto kType = std::is_same_v<Element, bf16> ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                       : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  TensorMapKey<kOuter> key{.data = data, .inner = inner, .device = device, .columns = columns};
  for (int i = 0; i < kOuter; ++i) {
    key.extents[i] = outer[i].extent;
    // The stride of an extent of 1 is never used, and may be anything.
    key.strides[i] = outer[i].extent == 1 ? 16 / sizeof(Element) : outer[i].stride;
    key.boxes[i] = outer[i].box;
  }
  Made& made = kept[key.hash() % kKept];
  if (made.is_known && made.key == key) {
    map = made.map;
    return {};
  }
  static const auto encode =
      driver_function<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled", 12000);
  if (encode == nullptr)
    return {"the driver has no cuTensorMapEncodeTiled: it is older than CUDA 12"};
  cuuint64_t extents[kOuter + 1] = {static_cast<cuuint64_t>(inner)};
  cuuint64_t strides[kOuter];
  cuuint32_t box[kOuter + 1] = {static_cast<cuuint32_t>(columns)};
  cuuint32_t steps[kOuter + 1] = {1};
  for (int i = 0; i < kOuter; ++i) {
    extents[i + 1] = static_cast<cuuint64_t>(key.extents[i]);
    strides[i] = static_cast<cuuint64_t>(key.strides[i]) * sizeof(Element);
    box[i + 1] = static_cast<cuuint32_t>(key.boxes[i]);
    steps[i + 1] = 1;
  }
  // In a thread that has not asked CUDA for anything yet no context is current, which the driver
  // wants: autograd's, for one.
  if (const cudaError_t status = cudaSetDevice(device); status != cudaSuccess)
    return {cudaGetErrorString(status)};
  void* address = const_cast<void*>(data);  // the driver's type knows no map that is only read
  if (encode(&map, kType, kOuter + 1, address, extents, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE,
             columns == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
    return {"cuTensorMapEncodeTiled failed"};
  made = {true, key, map};
  return {};
}

}  // namespace kernelmint
