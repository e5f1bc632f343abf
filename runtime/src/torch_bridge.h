// The extension's access to PyTorch, through Python objects and DLPack's exchange table, so that
// one build serves every PyTorch. No symbol of libtorch is linked.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "dlpack.h"
#include "python_function.h"
#include "registry.h"
#include "torch_memory.h"

namespace kernelmint {

namespace nb = nanobind;

inline constexpr int kUnknownDtype = -1;

// A tensor as the checks see it. Borrowed: valid while the Python object is alive and not resized.
struct TensorInfo {
  PyObject* object;
  void* data;
  dlpack::Device device;  // type 0: neither a CPU nor a CUDA device
  int dtype;              // a Dtype's number, or kUnknownDtype
  int rank;
  const std::int64_t* shape;    // null if rank exceeds kMaxRank
  const std::int64_t* strides;  // in elements
  bool is_inference;            // only set if the tensor is written: it keeps no version
  std::int64_t shape_storage[kMaxRank];
  std::int64_t strides_storage[kMaxRank];

  std::int64_t numel() const {
    std::int64_t result = 1;
    for (int i = 0; i < rank; ++i) result *= shape[i];
    return result;
  }
};

const char* torch_name(Dtype dtype);  // "torch.bfloat16"
int size_in_bytes(Dtype dtype);

// str(object), for messages.
std::string to_text(nb::handle object);

// The name of the object's type, for messages: "an int".
std::string type_text(nb::handle object);

// repr(object), for messages: cut if it is long, and never an error.
std::string shown(nb::handle object);

// The first line of the Python error that is set, which is cleared. An error that is not an
// Exception, such as a KeyboardInterrupt, is thrown on.
std::string take_python_error();

class Torch {
 public:
  static Torch& get();  // imports torch at the first call

  // Fills `info`. Throws InvalidArgument, naming `argument`, for an object that is not a tensor
  // with its own memory: another type, a fake, nested, meta or sparse tensor; ThroughOperator for a
  // subclass with its own dispatch.
  void read(PyObject* object, const char* argument, TensorInfo& info);

  // Returns whether a mode of PyTorch's is active that must see each operator: a dispatch mode
  // (make_fx's, FakeTensorMode, …), a function mode (make_fx before autograd pushes one),
  // torch.jit.trace, or forward-mode differentiation.
  bool is_intercepted();
  bool has_function_mode();
  bool is_forward_differentiated();

  // Returns false for an instance of a subclass that may behave differently from tensors.
  bool is_plain(PyObject* object) const {
    return Py_TYPE(object) == tensor_type_ || Py_TYPE(object) == parameter_type_;
  }
  // Returns whether a tensor's dimensions have names, for which PyTorch refuses operators.
  bool has_names(PyObject* tensor) const;
  // The number of one of PyTorch's dtypes, or kUnknownDtype.
  int dtype_of(PyObject* object) const;
  bool is_tensor(PyObject* object) const { return PyObject_TypeCheck(object, tensor_type_) != 0; }
  bool grad_enabled();
  bool requires_grad(PyObject* tensor);
  bool has_neg_bit(PyObject* tensor);
  bool has_conj_bit(PyObject* tensor);

  bool is_inference(PyObject* tensor);
  bool inference_mode_enabled();

  // A context manager that names a span of the profiler's; invalid if none is active.
  nb::object profiled(const char* name);

  int num_threads();
  void* current_stream(int cuda_device);
  DeviceFacts cuda_facts(int device);

  nb::object empty(const std::int64_t* shape, int rank, Dtype dtype, dlpack::Device device);
  nb::object empty_strided(const std::int64_t* shape, const std::int64_t* strides, int rank,
                           Dtype dtype, dlpack::Device device);
  nb::object zeros(std::int64_t bytes, dlpack::Device device);  // u8, one dimension
  void fill(nb::handle tensor, double value) const;             // on its device's current stream

  // Tells autograd that a kernel wrote into `tensor`, whose is_inference is set.
  void mark_written(const TensorInfo& tensor);
  void mark_written(std::span<const TensorInfo> tensors);

  bool has_exchange_api() const { return api_ != nullptr; }
  void use_exchange_api(bool use) { use_api_ = use && api_ != nullptr; }

 private:
  Torch();
  bool read_exchange(PyObject* object, TensorInfo& info);
  bool read_attributes(PyObject* object, TensorInfo& info);
  void check_type(PyObject* object, const char* argument);
  void check_plain(PyObject* object, const char* argument);
  nb::object device_object(dlpack::Device device);
  nb::object allocate(const nb::object& function, const std::int64_t* shape, int rank, Dtype dtype,
                      dlpack::Device device, const std::int64_t* strides = nullptr);

  nb::object module_;
  PyTypeObject* tensor_type_;
  PyTypeObject* parameter_type_;
  nb::object dispatch_;  // torch.Tensor.__torch_dispatch__
  Method is_neg_, is_conj_;
  std::optional<Method> has_names_;  // PyTorch 2.13 has no names
  Attribute requires_grad_, version_;
  const dlpack::ExchangeApi* api_ = nullptr;
  bool use_api_ = false;
  // C++ functions of libtorch's without arguments, null if it exports them under another name: the
  // lengths of the stacks of modes, and the address of a pointer that is null unless it traces.
  std::int64_t (*dispatch_modes_)() = nullptr;
  std::int64_t (*function_modes_)() = nullptr;
  void* const* (*tracing_state_)() = nullptr;
  Function num_dispatch_modes_, num_function_modes_, is_tracing_;
  nb::object is_wrapped_, is_functional_;
  nb::object forward_ad_;          // the namespace of torch.autograd.forward_ad
  bool (*grad_mode_)() = nullptr;  // PyTorch's C function; null if PyTorch has no such function
  Function is_grad_enabled_, get_num_threads_, is_inference_mode_;
  nb::object empty_, empty_strided_, zeros_, fill_;
  nb::object increment_version_, increment_one_version_;  // one of the two is set
  nb::object current_stream_;
  nb::object profiler_, record_function_;  // profiler_: its namespace
  nb::object dtypes_[kNumDtypes];
  nb::object cpu_device_;
  nb::ft_mutex mutex_;  // guards the two arrays
  nb::object cuda_devices_[64];
  DeviceFacts cuda_facts_[64] = {};
  nb::object empty_keywords_, strided_keywords_;
  std::optional<TorchMemory> memory_;
};

}  // namespace kernelmint
