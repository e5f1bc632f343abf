#include "torch_dispatch.h"

#include <dlfcn.h>

#include "torch_bridge.h"

namespace kernelmint {
namespace {

constexpr const char* kKeys = "_ZN3c104impl26raw_local_dispatch_key_setE";

}  // namespace

const TorchDispatch& TorchDispatch::get() {
  static const TorchDispatch* instance = new TorchDispatch;  // never destroyed, as Torch
  return *instance;
}

TorchDispatch::TorchDispatch() {
  void* const torch = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);  // never closed
  void* const c10 = dlopen("libc10.so", RTLD_NOW | RTLD_NOLOAD);
  if (torch == nullptr || c10 == nullptr) return;
  has_callbacks_ = reinterpret_cast<bool (*)()>(dlsym(torch, "_ZN2at12hasCallbacksEv"));
  if (has_callbacks_ != nullptr && dlsym(c10, kKeys) != nullptr) library_ = c10;
}

std::optional<TorchDispatch::Keys> TorchDispatch::keys() const {
  if (library_ == nullptr) return std::nullopt;
  thread_local const auto* const own = static_cast<const Keys*>(dlsym(library_, kKeys));
  return *own;
}

bool TorchDispatch::is_observed() const {
  return has_callbacks_() || Torch::get().has_function_mode();
}

}  // namespace kernelmint
