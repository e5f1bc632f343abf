// The memory that a launch asks LaunchContext::allocate for.
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

// Keeps the memory that one launch allocates; made and destroyed by the launch's thread, which
// holds Python's lock then.
class LaunchMemory {
 public:
  LaunchMemory(Torch& torch, dlpack::Device device)
      : torch_(torch),
        device_(device),
        thread_(std::this_thread::get_id()),
        state_(PyThreadState_Get()) {}

  // LaunchContext::allocator. Python's lock is not held.
  static Allocation allocate(void* memory, std::size_t bytes) noexcept;

  // Throws the exception of PyTorch's allocator, if it threw one.
  void rethrow() const {
    if (kept_ != nullptr && kept_->thrown != nullptr) std::rethrow_exception(kept_->thrown);
  }

 private:
  struct Free {
    void operator()(void* block) const { std::free(block); }
  };

  // Made at the first allocation: most launches ask for none.
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
