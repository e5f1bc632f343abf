// The state that the steps of a call share, and how messages show it.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "errors.h"
#include "kernel.h"

namespace kernelmint {

inline constexpr std::int64_t kNoStrides[kMaxRank] = {};
inline constexpr std::int64_t kMaxExtent = std::numeric_limits<std::int32_t>::max();

// The address of a tensor as a kernel sees it. Null means an absent tensor, so an empty tensor,
// which may have no memory, has another address.
inline void* address_of(const TensorInfo& tensor) {
  alignas(256) static std::byte nothing[1];
  return tensor.data != nullptr ? tensor.data : nothing;
}

constexpr bool is_floating(Dtype dtype) { return dtype == Dtype::f32 || dtype == Dtype::f64; }

std::string shape_of(const std::int64_t* shape, int rank);
std::string shape_of(PyObject* tensor);
std::string attribute_text(PyObject* tensor, const char* name);

// Outputs, indexed as the family's tensors are. Unlike an array of objects, the class neither
// clears nor reads places for outputs that a family does not have.
class Outputs {
 public:
  Outputs() = default;
  Outputs(const Outputs&) = delete;
  Outputs& operator=(const Outputs&) = delete;
  ~Outputs() {
    for (; held_ != 0; held_ &= held_ - 1) Py_DECREF(objects_[std::countr_zero(held_)]);
  }

  bool has(int index) const { return (held_ >> index & 1) != 0; }
  PyObject* at(int index) const { return objects_[index]; }
  void set(int index, nb::object object) {
    objects_[index] = object.release().ptr();
    held_ |= std::uint32_t{1} << index;
  }
  nb::object take(int index) {
    held_ &= ~(std::uint32_t{1} << index);
    return nb::steal(objects_[index]);
  }

 private:
  static_assert(kMaxTensors <= 32);
  PyObject* objects_[kMaxTensors];
  std::uint32_t held_ = 0;
};

// The tensors of a call's lists, one list after the other; arrays are indexed as the family's
// tensors are.
struct Lists {
  nb::object items[kMaxTensors];  // tuples, which hold the tensors
  std::unique_ptr<TensorInfo[]> tensors;
  std::unique_ptr<std::int64_t[]> views;  // ListedTensors
  int first[kMaxTensors];
  std::int64_t sizes[kMaxTensors];
  int place = 0;             // the tensors there are being bound
  bool are_written = false;  // a tensor of a list that the kernel changes has elements

  std::span<TensorInfo> of(int index) const {
    return {tensors.get() + first[index], static_cast<std::size_t>(sizes[index])};
  }
};

// Calls `check` with the argument of a list. If that throws, calls it again with the argument of
// the tensor at `place`: messages then name the tensor, whose name is made only for them.
template <class Argument, class Check>
void as_element(const Argument& argument, std::int64_t place, Check check) try {
  check(argument);
} catch (const InvalidArgument&) {
  const std::string name = text(argument.name, "[", place, "]");
  Argument element = argument;
  element.name = name.c_str();
  check(element);
  throw;
}

// The state of one call; arrays are indexed as the family's tensors and scalars are.
struct Kernel::Call {
  Torch& torch = Torch::get();
  const bool is_grad_enabled = torch.grad_enabled();
  TensorInfo tensors[kMaxTensors];
  BoundTensor bound[kMaxTensors];
  std::int64_t symbols[kMaxSymbols];
  std::int16_t bound_by[kMaxSymbols];  // the tensor that defined a symbol; -1: no tensor yet
  int first_input = -1;
  ScalarValue scalars[kMaxScalars];
  bool is_default[kMaxScalars];
  std::unique_ptr<Lists> lists;  // null: the family has none
  DeviceFacts facts;             // known if an expression asks for them, and at the launch
  bool present[kMaxTensors];     // requested outputs, and inputs that are passed
  int num_wanted = 0;            // requested outputs
  bool wants_all = false;        // the other outputs are returned as empty tensors
  Outputs owned;
  std::vector<nb::object> workspace;       // the tensors of its parts
  bool are_inputs_read = false;            // the Selector has read them
  const DimensionOrder* orders = nullptr;  // each tensor's; null: the kernel's order
  bool is_launched = false;
  int num_launches = 1;
  bool wants_trace = false;
  nb::object trace;
  TensorInfo records;

  dlpack::Device device() const { return tensors[first_input].device; }
};

}  // namespace kernelmint
