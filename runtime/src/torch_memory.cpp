#include "torch_memory.h"

#include <dlfcn.h>

#include <algorithm>
#include <string>

#include "gil.h"
#include "torch_bridge.h"

namespace kernelmint {
namespace {

template <class Function>
Function symbol(void* library, const std::string& name) {
  return reinterpret_cast<Function>(dlsym(library, name.c_str()));
}

}  // namespace

TorchMemory::TorchMemory(void* library, nb::handle internals) {
  dtypes_.fill(-1);
  if (library == nullptr) return;
  const auto cpu = symbol<Code>(library, "aoti_torch_device_type_cpu");
  const auto cuda = symbol<Code>(library, "aoti_torch_device_type_cuda");
  delete_ = symbol<Delete>(library, "aoti_torch_delete_tensor_object");
  const nb::object is_deterministic =
      nb::getattr(internals, "_get_deterministic_algorithms", nb::none());
  is_deterministic_ = Function(is_deterministic);
  wrap_ = nb::getattr(nb::getattr(internals, "_aoti", nb::none()),
                      "alloc_tensor_by_stealing_from_void_ptr", nb::none());
  // Versions of PyTorch that do not keep an error's text write it to stderr.
  const bool is_silent = dlsym(library, "torch_exception_get_what") != nullptr;
  if (cpu == nullptr || cuda == nullptr || delete_ == nullptr || is_deterministic.is_none() ||
      wrap_.is_none() || !is_silent)
    return;
  cpu_ = cpu();
  cuda_ = cuda();
  for (int i = 0; i < kNumDtypes; ++i) {
    const std::string name = torch_name(static_cast<Dtype>(i)) + std::string("torch.").size();
    if (const auto code = symbol<Code>(library, "aoti_torch_dtype_" + name)) dtypes_[i] = code();
  }
  empty_strided_ = symbol<EmptyStrided>(library, "aoti_torch_empty_strided");
}

nb::object TorchMemory::empty_strided(const std::int64_t* shape, const std::int64_t* strides,
                                      int rank, Dtype dtype, dlpack::Device device) const {
  const std::int32_t code = dtypes_[static_cast<int>(dtype)];
  if (empty_strided_ == nullptr || code < 0) return {};
  if (is_deterministic_().ptr() == Py_True) return {};  // torch.empty fills new memory then
  Handle made = nullptr;
  const bool is_cuda = device.type == dlpack::kCuda;
  const auto make = [&] {
    return empty_strided_(rank, shape, strides, code, is_cuda ? cuda_ : cpu_, device.id, &made) ==
           0;
  };
  const auto make_unlocked = [&] {
    const ReleaseGil released;
    return make();
  };
  // Allocating a GPU's memory may call the driver, which waits for the device. An empty tensor has
  // no memory, and a host's allocation takes no longer than releasing and taking the lock.
  const bool has_elements = std::find(shape, shape + rank, 0) == shape + rank;
  if (!(is_cuda && has_elements ? make_unlocked() : make())) return {};
  // The wrapper copies the handle, although its name says otherwise: the handle is deleted here in
  // any case.
  const auto capsule = nb::steal(PyCapsule_New(made, nullptr, nullptr));
  PyObject* const arguments[] = {capsule.ptr()};
  auto tensor = nb::steal(
      capsule.is_valid() ? PyObject_Vectorcall(wrap_.ptr(), arguments, 1, nullptr) : nullptr);
  delete_(made);
  if (!tensor.is_valid()) throw nb::python_error();
  return tensor;
}

}  // namespace kernelmint
