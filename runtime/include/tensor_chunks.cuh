// Launches over the chunks of lists of flat tensors, whose addresses go with the kernel's
// parameters as in apex's and PyTorch's multi_tensor_apply.
#pragma once

#include <cstdint>
#include <type_traits>

#include "integers.h"
#include "launch.h"
#include "tensor_list.h"

namespace kernelmint {

// The chunks of a launch, each of which a block takes: of tensors at the same places of so many
// lists. A kernel has it as a parameter, `const __grid_constant__ TensorChunks<2> chunks`.
template <int Lists>
struct TensorChunks {
  static constexpr int kTensors = 2400 / (8 * (Lists + 1)) < 255 ? 2400 / (8 * (Lists + 1)) : 255;
  static constexpr int kBlocks = 320;

  void* addresses[Lists][kTensors];
  std::int64_t sizes[kTensors];           // elements
  std::uint8_t block_to_tensor[kBlocks];  // a place in the arrays above
  std::int32_t block_to_chunk[kBlocks];   // the chunk of that tensor
};
static_assert(sizeof(TensorChunks<1>) <= 4096 && sizeof(TensorChunks<8>) <= 4096);

// Calls launch(chunks, blocks), which returns a LaunchResult, for all chunks of `chunk_size`
// elements of the lists, which are equally long and hold tensors of equal sizes at each place.
// `Chunks` is TensorChunks or a project's own struct with these members.
template <class Chunks, class Launch, class List, class... Lists>
LaunchResult launch_chunks(std::int64_t chunk_size, Launch launch, const List& list,
                           const Lists&... lists) {
  constexpr int kTensors = std::extent_v<decltype(Chunks::sizes)>;
  constexpr int kBlocks = std::extent_v<decltype(Chunks::block_to_chunk)>;
  Chunks chunks = {};
  int tensors = 0, blocks = 0;
  for (std::int64_t i = 0; i < list.size; ++i) {
    const std::int64_t size = list[i].extent[0], count = ceil_div(size, chunk_size);
    for (std::int64_t chunk = 0; chunk < count; ++chunk) {
      if (blocks == kBlocks || (chunk == 0 && tensors == kTensors)) {
        if (const LaunchResult result = launch(chunks, blocks); result.error != nullptr)
          return result;
        tensors = blocks = 0;
      }
      if (chunk == 0 || tensors == 0) {
        int of = 0;
        chunks.addresses[of++][tensors] = const_cast<void*>(static_cast<const void*>(list[i].data));
        ((chunks.addresses[of++][tensors] =
              const_cast<void*>(static_cast<const void*>(lists[i].data))),
         ...);
        chunks.sizes[tensors++] = size;
      }
      chunks.block_to_tensor[blocks] = tensors - 1;
      chunks.block_to_chunk[blocks++] = static_cast<std::int32_t>(chunk);
    }
  }
  return blocks == 0 ? LaunchResult{} : launch(chunks, blocks);
}

}  // namespace kernelmint
