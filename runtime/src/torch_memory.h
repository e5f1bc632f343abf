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
  // Finds the functions in the libtorch that this process has loaded, null if it is not found. A
  // libtorch that lacks some of them, such as one that writes its errors to stderr, makes no
  // tensors here.
  TorchMemory(void* library, nb::handle internals);  // torch._C

  // A tensor of PyTorch's own; invalid if PyTorch is better asked by torch.empty: it has no such
  // functions, does not know the dtype, has to fill new memory, or failed, which torch.empty's
  // error then explains. Python's lock is released meanwhile if that may take long.
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

  EmptyStrided empty_strided_ = nullptr;  // null: it makes none
  Delete delete_ = nullptr;
  std::int32_t cpu_ = 0, cuda_ = 0;
  std::array<std::int32_t, kNumDtypes> dtypes_;  // PyTorch's numbers; -1: it has none
  Function is_deterministic_;
  nb::object wrap_;
};

}  // namespace kernelmint
