// The state of a thread in PyTorch's dispatcher, which decides whether a call must pass through the
// dispatcher.
#pragma once

#include <cstdint>
#include <optional>

namespace kernelmint {

class TorchDispatch {
 public:
  // Dispatch keys that the thread's modes, transforms and guards add to the tensors' keys, and
  // remove from them; each as the difference from a thread without modes.
  struct Keys {
    std::uint64_t included, excluded;
    bool operator==(const Keys&) const = default;
  };

  static const TorchDispatch& get();  // after torch is imported

  // The calling thread's keys, as libc10 holds them (c10::impl::raw_local_dispatch_key_set). Empty
  // if this PyTorch has no such variable, or if its libraries do not say whether anything observes
  // calls.
  std::optional<Keys> keys() const;

  // Returns whether an observer sees each call of an operator, such as a profiler or a function
  // mode.
  bool is_observed() const;

 private:
  TorchDispatch();

  void* library_ = nullptr;            // libc10, if it has the variable
  bool (*has_callbacks_)() = nullptr;  // at::hasCallbacks
};

}  // namespace kernelmint
