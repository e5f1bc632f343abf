// Tensor maps of the tensors that attention reads and writes.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "launch.h"
#include "tensor_map.h"
#include "tensor_view.h"

namespace kernelmint::attention::sm90a {

// A tensor [B, S, H, D]. Heads, or batch entries, that are one and the same in memory are one in
// the map, and their index counts nothing.
struct MappedTensor {
  CUtensorMap map;
  int head_step, batch_step;
};

// Extents and strides of a tensor [B, S, H, D]. An extent whose stride is 0 counts as 1.
struct Layout {
  template <class Memory>
  Layout(const char* argument, const TensorView<4, Memory>& tensor, std::int64_t D, std::int64_t S,
         std::int64_t H, std::int64_t B)
      : name(argument),
        data(tensor.data),
        columns(D),
        rows{S, tensor.stride[1]},
        heads{tensor.stride[2] != 0 ? H : 1, tensor.stride[2]},
        batch{tensor.stride[0] != 0 ? B : 1, tensor.stride[0]} {}

  const char* name;  // the argument's
  const void* data;
  std::int64_t columns;
  TensorMapDimension rows, heads, batch;
};

template <class Element, int kOuter>
LaunchResult encode(MappedTensor& mapped, const Layout& layout,
                    const TensorMapDimension (&outer)[kOuter], int device, int columns = 64) {
  constexpr std::int64_t kEnd = std::int64_t{1} << 40;
  for (const auto& [extent, stride, _] : outer) {
    const std::int64_t bytes = stride * static_cast<std::int64_t>(sizeof(Element));
    if (extent > 1 && (bytes <= 0 || bytes >= kEnd || bytes % 16 != 0))
      return {.error = "bytes of a stride, of which a tensor map takes multiples of 16",
              .argument = layout.name,
              .value = bytes,
              .least = 16,
              .most = kEnd - 16};
  }
  mapped.head_step = layout.heads.stride != 0;
  mapped.batch_step = layout.batch.stride != 0;
  return encode_tensor_map<Element>(mapped.map, layout.data, layout.columns, outer, device,
                                    columns);
}

// K or V, in boxes of `block` rows by 64 columns, or 32.
template <class Element>
LaunchResult encode_keys(MappedTensor& mapped, Layout layout, int block, int device,
                         int columns = 64) {
  layout.rows.box = block;
  return encode<Element>(mapped, layout, {layout.rows, layout.heads, layout.batch}, device,
                         columns);
}

}  // namespace kernelmint::attention::sm90a
