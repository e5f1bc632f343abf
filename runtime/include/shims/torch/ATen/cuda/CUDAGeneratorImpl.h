// A shim of PyTorch's header: the parts that foreign kernels use, without PyTorch. It has no
// generator: a launch makes the state of the seed and the offset that its call was given.
#pragma once

#include <cstdint>

namespace at {

// Where a kernel's random numbers begin: values, or (as under a CUDA graph) where they are found.
struct PhiloxCudaState {
  union Payload {
    std::uint64_t val;
    std::int64_t* ptr;
  };

  PhiloxCudaState() = default;
  PhiloxCudaState(std::uint64_t seed, std::uint64_t offset)
      : seed_{.val = seed}, offset_{.val = offset} {}
  PhiloxCudaState(std::int64_t* seed, std::int64_t* offset, std::uint64_t offset_intragraph)
      : seed_{.ptr = seed},
        offset_{.ptr = offset},
        offset_intragraph_(offset_intragraph),
        captured_(true) {}

  Payload seed_{};
  Payload offset_{};
  std::uint64_t offset_intragraph_ = 0;
  bool captured_ = false;
};

}  // namespace at
