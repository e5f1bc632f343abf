// New tensors by the C functions that PyTorch exports for compiled models (aoti_torch_*), in place
// of torch.empty, which spends most of its time on reading Python's arguments.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>

#include "dlpack.h"
#include "python_function.h"
#include "registry.h"

namespace kernelmint {

namespace nb = nanobind;

class TorchMemory {
 public:
  // Finds the functions in `library`, the libtorch that this process has loaded, or null. If the
  // libtorch lacks some of them, or writes its errors to stderr, empty_strided makes no tensors.
  TorchMemory(void* library, nb::handle internals);  // torch._C

  // A new tensor of PyTorch's. Invalid if the caller has to use torch.empty: PyTorch has no such
  // functions, does not know the dtype, has to fill new memory, or failed, so that torch.empty's
  // error explains why. Python's lock is released meanwhile if the allocation may take long.
  nb::object empty_strided(const std::int64_t* shape, const std::int64_t* strides, int rank,
                           Dtype dtype, dlpack::Device device) const;

 private:
  using Handle = void*;
  using Code = std::int32_t (*)();
  using EmptyStrided = std::int32_t (*)(std::int64_t rank, const std::int64_t* shape,
                                        const std::int64_t* strides, std::int32_t dtype,
                                        std::int32_t device_type, std::int32_t device,
                                        Handle* made);
  using Delete = std::int32_t (*)(Handle);

  EmptyStrided empty_strided_ = nullptr;  // null: no tensors are made
  Delete delete_ = nullptr;
  std::int32_t cpu_ = 0, cuda_ = 0;
  std::array<std::int32_t, kNumDtypes> dtypes_;  // PyTorch's numbers; -1: unknown to PyTorch
  Function is_deterministic_;
  nb::object wrap_;
};

}  // namespace kernelmint
