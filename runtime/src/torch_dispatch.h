// What PyTorch's dispatcher keeps of a thread, which decides whether a call must pass through it.
#pragma once

#include <cstdint>
#include <optional>

namespace kernelmint {

class TorchDispatch {
 public:
  // Dispatch keys that the thread's modes, transforms and guards add to those of tensors, and take
  // from them; each as the difference from those of a thread without any.
  struct Keys {
    std::uint64_t included, excluded;
    bool operator==(const Keys&) const = default;
  };

  static const TorchDispatch& get();  // after torch is imported

  // Of the calling thread, as libc10 holds them (c10::impl::raw_local_dispatch_key_set); none if
  // this PyTorch's has no such variable, or its libraries do not say who observes calls.
  std::optional<Keys> keys() const;

  // Whether somebody is told of each call of an operator, such as a profiler or a function mode.
  bool is_observed() const;

 private:
  TorchDispatch();

  void* library_ = nullptr;            // libc10, if it has the variable
  bool (*has_callbacks_)() = nullptr;  // at::hasCallbacks
};

}  // namespace kernelmint
