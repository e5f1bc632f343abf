#include "torch_bridge.h"

#include <dlfcn.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "errors.h"

namespace kernelmint {
namespace {

struct DtypeRow {
  const char* torch_name;
  std::uint8_t code;
  std::uint8_t bits;
};

#define KERNELMINT_ROW(name, torch_name, code, bits) {torch_name, code, bits},
constexpr DtypeRow kDtypes[kNumDtypes] = {KERNELMINT_DTYPES(KERNELMINT_ROW)};
#undef KERNELMINT_ROW

constexpr int kMostCode = 31, kMostBits = 128;

// The dtype by DLPack's code and number of bits: a table, since every call looks here.
constexpr auto kByType = [] {
  std::array<std::array<std::int8_t, kMostBits + 1>, kMostCode + 1> found{};
  for (auto& row : found) row.fill(kUnknownDtype);
  for (int i = 0; i < kNumDtypes; ++i)
    found[kDtypes[i].code][kDtypes[i].bits] = static_cast<std::int8_t>(i);
  return found;
}();

int to_dtype(dlpack::DataType type) {
  const int bits = type.bits * type.lanes;
  const bool is_pair = type.lanes == 2 && type.bits == 4;  // one element of PyTorch's
  if ((type.lanes != 1 && !is_pair) || type.code > kMostCode || bits > kMostBits)
    return kUnknownDtype;
  return kByType[type.code][bits];
}

// Interned attribute names; they live as long as the process.
struct Names {
  PyObject* data_ptr = PyUnicode_InternFromString("data_ptr");
  PyObject* shape = PyUnicode_InternFromString("shape");
  PyObject* stride = PyUnicode_InternFromString("stride");
  PyObject* dtype = PyUnicode_InternFromString("dtype");
  PyObject* device = PyUnicode_InternFromString("device");
  PyObject* type = PyUnicode_InternFromString("type");
  PyObject* index = PyUnicode_InternFromString("index");
  PyObject* is_profiler_enabled = PyUnicode_InternFromString("_is_profiler_enabled");
  PyObject* current_level = PyUnicode_InternFromString("_current_level");
  PyObject* torch_dispatch = PyUnicode_InternFromString("__torch_dispatch__");
};

const Names& names() {
  static const Names* instance = new Names;
  return *instance;
}

template <class Pointer>
void find_function(void* library, const char* name, Pointer& function) {
  function = reinterpret_cast<Pointer>(dlsym(library, name));
}

nb::object attribute(PyObject* object, PyObject* name) {
  return checked(PyObject_GetAttr(object, name));
}

nb::object call_method(PyObject* object, PyObject* name) {
  return checked(PyObject_VectorcallMethod(name, &object, 1, nullptr));
}

}  // namespace

const char* torch_name(Dtype dtype) { return kDtypes[static_cast<int>(dtype)].torch_name; }
int size_in_bytes(Dtype dtype) { return kDtypes[static_cast<int>(dtype)].bits / 8; }

std::string to_text(nb::handle object) {
  const nb::object result = checked(PyObject_Str(object.ptr()));
  return nb::cast<std::string>(result);
}

std::string type_text(nb::handle object) {
  const std::string name = to_text(object.type().attr("__name__"));
  return (std::strchr("aeiouAEIOU", name[0]) != nullptr ? "an " : "a ") + name;
}

std::string shown(nb::handle object) {
  return to_text(nb::module_::import_("runtime.errors").attr("shown")(object));
}

std::string take_python_error() {
  nb::python_error error;
  if (!error.matches(PyExc_Exception)) throw error;
  const std::string message = to_text(error.value());
  return message.substr(0, message.find('\n'));
}

Torch& Torch::get() {
  static Torch* instance = new Torch;  // never destroyed: Python may be gone by then
  return *instance;
}

Torch::Torch() : module_(nb::module_::import_("torch")) {
  tensor_type_ =
      reinterpret_cast<PyTypeObject*>(nb::object(module_.attr("Tensor")).release().ptr());
  parameter_type_ = reinterpret_cast<PyTypeObject*>(
      nb::object(module_.attr("nn").attr("Parameter")).release().ptr());
  dispatch_ = nb::getattr(module_.attr("Tensor"), "__torch_dispatch__");
  const nb::object tensor = module_.attr("empty")(0);
  is_neg_ = Method(tensor, "is_neg");
  is_conj_ = Method(tensor, "is_conj");
  if (nb::hasattr(tensor, "has_names")) has_names_ = Method(tensor, "has_names");
  requires_grad_ = Attribute(tensor, "requires_grad");
  version_ = Attribute(tensor, "_version");
  const nb::object internals = module_.attr("_C");
  num_dispatch_modes_ = Function(internals.attr("_len_torch_dispatch_stack"));
  num_function_modes_ = Function(internals.attr("_len_torch_function_stack"));
  is_tracing_ = Function(internals.attr("_is_tracing"));
  forward_ad_ = nb::module_::import_("torch.autograd.forward_ad").attr("__dict__");
  is_wrapped_ = internals.attr("_functorch").attr("is_functorch_wrapped_tensor");
  is_functional_ = module_.attr("_is_functional_tensor");
  is_inference_mode_ = Function(module_.attr("is_inference_mode_enabled"));
  profiler_ = nb::module_::import_("torch.autograd.profiler").attr("__dict__");
  record_function_ = internals.attr("_profiler").attr("_RecordFunctionFast");
  is_grad_enabled_ = Function(module_.attr("is_grad_enabled"));
  get_num_threads_ = Function(module_.attr("get_num_threads"));
  empty_ = module_.attr("empty");
  empty_strided_ = module_.attr("empty_strided");
  zeros_ = module_.attr("zeros");
  fill_ = module_.attr("Tensor").attr("fill_");
  // The function that torch.autograd.graph.increment_version calls, if it takes several tensors.
  increment_version_ = nb::getattr(internals, "_increment_version", nb::none());
  try {
    increment_version_(nb::make_tuple(tensor));
  } catch (const nb::python_error&) {  // PyTorch before 2.6
    increment_version_ = nb::object();
    increment_one_version_ = module_.attr("autograd").attr("graph").attr("increment_version");
  }
  current_stream_ = module_.attr("cuda").attr("current_stream");
  for (int i = 0; i < kNumDtypes; ++i)
    dtypes_[i] = nb::getattr(module_, kDtypes[i].torch_name + std::string("torch.").size(),
                             nb::none());  // none: PyTorch is older than the dtype
  cpu_device_ = module_.attr("device")("cpu");
  void* const library = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);  // never closed
  memory_.emplace(library, internals);
  if (library != nullptr) {
    find_function(library, "aoti_torch_grad_mode_is_enabled", grad_mode_);
    find_function(library, "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv", dispatch_modes_);
    find_function(library, "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv", function_modes_);
    find_function(library, "_ZN5torch3jit6tracer15getTracingStateEv", tracing_state_);
  }
  empty_keywords_ = nb::make_tuple("size", "dtype", "device");
  strided_keywords_ = nb::make_tuple("size", "dtype", "device", "stride");

  nb::object capsule = nb::getattr(module_.attr("Tensor"), "__dlpack_c_exchange_api__", nb::none());
  if (PyCapsule_IsValid(capsule.ptr(), dlpack::kCapsuleName)) {
    const auto* api = static_cast<const dlpack::ExchangeApi*>(
        PyCapsule_GetPointer(capsule.ptr(), dlpack::kCapsuleName));
    // Tables of other major versions are chained after the newest one.
    while (api != nullptr && api->version.major != dlpack::kMajorVersion) api = api->previous;
    if (api != nullptr && api->dltensor_from_py_object_no_sync != nullptr) api_ = api;
  }
  use_api_ = api_ != nullptr;
}

bool Torch::read_exchange(PyObject* object, TensorInfo& info) {
  dlpack::Tensor tensor;
  if (api_->dltensor_from_py_object_no_sync(object, &tensor) != 0) return false;
  info.object = object;
  info.data =
      tensor.data == nullptr ? nullptr : static_cast<char*>(tensor.data) + tensor.byte_offset;
  info.device = tensor.device;
  if (info.device.type != dlpack::kCpu && info.device.type != dlpack::kCuda) info.device.type = 0;
  if (info.device.type == dlpack::kCpu) info.device.id = 0;
  info.dtype = to_dtype(tensor.dtype);
  info.rank = tensor.ndim;
  info.shape = tensor.shape;
  info.strides = tensor.strides;
  if (info.strides == nullptr && info.rank <= kMaxRank) {
    std::int64_t stride = 1;
    for (int i = info.rank - 1; i >= 0; --i) {
      info.strides_storage[i] = stride;
      stride *= info.shape[i];
    }
    info.strides = info.strides_storage;
  }
  return true;
}

bool Torch::read_attributes(PyObject* object, TensorInfo& info) try {
  info.object = object;
  const nb::object shape = attribute(object, names().shape);
  const nb::object stride = call_method(object, names().stride);
  const nb::object dtype = attribute(object, names().dtype);
  const nb::object device = attribute(object, names().device);
  const std::string type = nb::cast<std::string>(attribute(device.ptr(), names().type));
  info.device = {type == "cpu" ? dlpack::kCpu : type == "cuda" ? dlpack::kCuda : 0, 0};
  if (info.device.type == dlpack::kCuda)
    info.device.id = nb::cast<int>(attribute(device.ptr(), names().index));
  info.dtype = dtype_of(dtype.ptr());
  info.rank = static_cast<int>(nb::len(shape));
  info.shape = info.strides = nullptr;
  if (info.rank <= kMaxRank) {
    for (int i = 0; i < info.rank; ++i) {
      info.shape_storage[i] = nb::cast<std::int64_t>(shape[i]);
      info.strides_storage[i] = nb::cast<std::int64_t>(stride[i]);
    }
    info.shape = info.shape_storage;
    info.strides = info.strides_storage;
  }
  info.data = nullptr;
  if (type != "meta") {
    const nb::object pointer = call_method(object, names().data_ptr);
    info.data = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(pointer));
  }
  return true;
} catch (nb::python_error& error) {
  error.restore();
  return false;
}

// Subclasses that only add methods (torch.nn.Parameter is one) are tensors like any other.
void Torch::check_type(PyObject* object, const char* argument) {
  if (!is_tensor(object))
    throw InvalidArgument(text(argument, ": got ", type_text(object), ", expected a torch.Tensor"));
  const nb::object dispatch =
      attribute(reinterpret_cast<PyObject*>(Py_TYPE(object)), names().torch_dispatch);
  if (dispatch.is(dispatch_)) return;
  const std::string type = type_text(object);
  if (type.find("FakeTensor") != std::string::npos)
    throw InvalidArgument(text(argument, ": got ", type,
                               ", which has no memory; expected a tensor with data (a fake tensor "
                               "goes with its mode: call this inside it)"));
  if (nb::cast<bool>(nb::handle(object).attr("is_nested")))
    throw InvalidArgument(
        text(argument, ": got a nested tensor, expected a dense tensor with data"));
  throw ThroughOperator(text(argument, ": got ", type,
                             ", a tensor subclass with a dispatch of its own; expected the plain "
                             "torch.Tensor that it wraps"));
}

void Torch::check_plain(PyObject* object, const char* argument) {
  const nb::handle tensor(object);
  if (nb::cast<bool>(is_wrapped_(tensor)) || nb::cast<bool>(is_functional_(tensor)))
    throw ThroughOperator(text(argument,
                               ": got a tensor inside a transform of torch.func, expected a "
                               "dense tensor with data"));
}

void Torch::read(PyObject* object, const char* argument, TensorInfo& info) {
  PyTypeObject* type = Py_TYPE(object);
  if (type != tensor_type_ && type != parameter_type_) check_type(object, argument);
  const bool is_read = use_api_ ? read_exchange(object, info) : read_attributes(object, info);
  if (!is_read) {
    const std::string reason = take_python_error();
    nb::handle tensor(object);
    check_plain(object, argument);
    if (nb::cast<bool>(tensor.attr("is_meta")))
      throw InvalidArgument(
          text(argument, ": got a meta tensor, which has no memory; expected a tensor with data"));
    throw InvalidArgument(text(argument, ": got a tensor of layout ",
                               to_text(tensor.attr("layout")), " on ",
                               to_text(tensor.attr("device")),
                               ", expected a dense tensor with data (torch: ", reason, ")"));
  }
  if (info.data == nullptr && info.shape != nullptr) {
    check_plain(object, argument);
    if (info.numel() == 0) return;
    const bool is_meta = nb::cast<bool>(nb::handle(object).attr("is_meta"));
    throw InvalidArgument(
        text(argument,
             is_meta ? ": got a meta tensor, which has no memory" : ": got a tensor without memory",
             "; expected a tensor with data"));
  }
}

int Torch::dtype_of(PyObject* object) const {
  for (int i = 0; i < kNumDtypes; ++i)
    if (dtypes_[i].ptr() == object) return i;
  return kUnknownDtype;
}

bool Torch::is_intercepted() {
  const bool has_dispatch_mode = dispatch_modes_ != nullptr
                                     ? dispatch_modes_() != 0
                                     : PyLong_AsLong(num_dispatch_modes_().ptr()) != 0;
  if (has_dispatch_mode || has_function_mode()) return true;
  const bool is_traced =
      tracing_state_ != nullptr ? *tracing_state_() != nullptr : is_tracing_().ptr() == Py_True;
  return is_traced || is_forward_differentiated();
}

bool Torch::has_function_mode() {
  return function_modes_ != nullptr ? function_modes_() != 0
                                    : PyLong_AsLong(num_function_modes_().ptr()) != 0;
}

bool Torch::is_forward_differentiated() {
  return PyLong_AsLong(PyDict_GetItemWithError(forward_ad_.ptr(), names().current_level)) >= 0;
}

bool Torch::grad_enabled() {
  return grad_mode_ != nullptr ? grad_mode_() : is_grad_enabled_().ptr() == Py_True;
}

bool Torch::requires_grad(PyObject* tensor) { return requires_grad_(tensor).ptr() == Py_True; }

bool Torch::has_names(PyObject* tensor) const {
  return has_names_.has_value() && (*has_names_)(tensor).ptr() == Py_True;
}

bool Torch::has_neg_bit(PyObject* tensor) { return is_neg_(tensor).ptr() == Py_True; }

bool Torch::has_conj_bit(PyObject* tensor) { return is_conj_(tensor).ptr() == Py_True; }

// An inference tensor has no version; reading the version takes half as long as is_inference().
bool Torch::is_inference(PyObject* tensor) { return !version_.is_there(tensor); }

bool Torch::inference_mode_enabled() { return is_inference_mode_().ptr() == Py_True; }

nb::object Torch::profiled(const char* name) {
  PyObject* is_enabled = PyDict_GetItemWithError(profiler_.ptr(), names().is_profiler_enabled);
  return is_enabled == Py_True ? record_function_(name) : nb::object();
}

int Torch::num_threads() { return static_cast<int>(PyLong_AsLong(get_num_threads_().ptr())); }

void* Torch::current_stream(int cuda_device) {
  if (use_api_) {
    void* stream = nullptr;
    if (api_->current_work_stream(dlpack::kCuda, cuda_device, &stream) != 0)
      throw nb::python_error();
    return stream;
  }
  const nb::object stream = current_stream_(cuda_device);
  return reinterpret_cast<void*>(nb::cast<std::uintptr_t>(stream.attr("cuda_stream")));
}

nb::object Torch::device_object(dlpack::Device device) {
  if (device.type == dlpack::kCpu) return cpu_device_;
  constexpr int kCached = sizeof(cuda_devices_) / sizeof(cuda_devices_[0]);
  if (device.id >= kCached) return module_.attr("device")("cuda", device.id);
  const nb::ft_lock_guard lock(mutex_);
  nb::object& cached = cuda_devices_[device.id];
  if (!cached.is_valid()) cached = module_.attr("device")("cuda", device.id);
  return cached;
}

DeviceFacts Torch::cuda_facts(int device) {
  constexpr int kCached = sizeof(cuda_facts_) / sizeof(cuda_facts_[0]);
  if (device < kCached) {
    const nb::ft_lock_guard lock(mutex_);
    if (cuda_facts_[device].sm_count != 0) [[likely]]
      return cuda_facts_[device];
  }
  const nb::object found = nb::module_::import_("runtime.devices").attr("facts")(device);
  const DeviceFacts facts = {nb::cast<std::int64_t>(found[0]), nb::cast<std::int64_t>(found[1])};
  if (device < kCached) {
    const nb::ft_lock_guard lock(mutex_);
    cuda_facts_[device] = facts;
  }
  return facts;
}

nb::object Torch::allocate(const nb::object& function, const std::int64_t* shape, int rank,
                           Dtype dtype, dlpack::Device device, const std::int64_t* strides) {
  const auto tuple = [&](const std::int64_t* values) {
    nb::object result = checked(PyTuple_New(rank));
    for (int i = 0; i < rank; ++i)
      NB_TUPLE_SET_ITEM(result.ptr(), i, checked(PyLong_FromLongLong(values[i])).release().ptr());
    return result;
  };
  if (dtypes_[static_cast<int>(dtype)].is_none())
    throw InvalidArgument(text("this version of PyTorch has no ", torch_name(dtype)));
  const nb::object size = tuple(shape), where = device_object(device);
  const nb::object stride = strides == nullptr ? nb::object() : tuple(strides);
  PyObject* arguments[] = {size.ptr(), dtypes_[static_cast<int>(dtype)].ptr(), where.ptr(),
                           stride.ptr()};
  // By keyword: by position, torch tries the tuple as an int first, and takes a third longer.
  return checked(
      PyObject_Vectorcall(function.ptr(), arguments, 0,
                          (strides == nullptr ? empty_keywords_ : strided_keywords_).ptr()));
}

nb::object Torch::empty(const std::int64_t* shape, int rank, Dtype dtype, dlpack::Device device) {
  std::int64_t strides[kMaxRank], step = 1;
  for (int i = rank - 1; i >= 0; --i) {
    strides[i] = step;
    step *= std::max<std::int64_t>(shape[i], 1);
  }
  nb::object made = memory_->empty_strided(shape, strides, rank, dtype, device);
  if (made.is_valid()) return made;
  return allocate(empty_, shape, rank, dtype, device);
}

nb::object Torch::empty_strided(const std::int64_t* shape, const std::int64_t* strides, int rank,
                                Dtype dtype, dlpack::Device device) {
  nb::object made = memory_->empty_strided(shape, strides, rank, dtype, device);
  if (made.is_valid()) return made;
  return allocate(empty_strided_, shape, rank, dtype, device, strides);
}

nb::object Torch::zeros(std::int64_t bytes, dlpack::Device device) {
  return allocate(zeros_, &bytes, 1, Dtype::u8, device);
}

void Torch::fill(nb::handle tensor, double value) const { fill_(tensor, value); }

void Torch::mark_written(std::span<const TensorInfo> tensors) {
  if (!increment_version_.is_valid()) {
    for (const TensorInfo& tensor : tensors) mark_written(tensor);
    return;
  }
  nb::list written;
  for (const TensorInfo& tensor : tensors)
    if (!tensor.is_inference) written.append(nb::handle(tensor.object));
  increment_version_(written);
}

void Torch::mark_written(const TensorInfo& tensor) {
  if (tensor.is_inference) return;
  if (increment_version_.is_valid())
    call_with(increment_version_, checked(PyTuple_Pack(1, tensor.object)).ptr());
  else
    increment_one_version_(nb::handle(tensor.object));
}

}  // namespace kernelmint
