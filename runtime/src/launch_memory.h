// Memory that a launch requests by LaunchContext::allocate.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "launch.h"
#include "torch_bridge.h"

namespace kernelmint {

// Owner of the memory that one launch allocates. The launch's thread makes and destroys it while
// the thread holds Python's lock.
class LaunchMemory {
 public:
  LaunchMemory(Torch& torch, dlpack::Device device)
      : torch_(torch),
        device_(device),
        thread_(std::this_thread::get_id()),
        state_(PyThreadState_Get()) {}

  // Serves LaunchContext::allocator. Python's lock is not held.
  static Allocation allocate(void* memory, std::size_t bytes) noexcept;

  // Throws the exception of PyTorch's allocator, if it threw one.
  void rethrow() const {
    if (kept_ != nullptr && kept_->thrown != nullptr) std::rethrow_exception(kept_->thrown);
  }

 private:
  struct Free {
    void operator()(void* block) const { std::free(block); }
  };

  // Made at the first allocation, since most launches allocate nothing.
  struct Kept {
    std::vector<nb::object> tensors;
    std::vector<std::unique_ptr<void, Free>> blocks;
    std::exception_ptr thrown;
    std::string error;
  };

  Kept& kept();
  Allocation of_torch(std::size_t bytes);
  Allocation of_process(std::size_t bytes);

  Torch& torch_;
  const dlpack::Device device_;
  const std::thread::id thread_;
  PyThreadState* const state_;
  std::unique_ptr<Kept> kept_;
};

}  // namespace kernelmint
