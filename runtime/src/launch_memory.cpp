#include "launch_memory.h"

#include <cstdint>
#include <mutex>

#include "gil.h"
#include "message.h"

namespace kernelmint {
namespace {

constexpr std::size_t kAlignment = 256;

std::mutex mutex;  // guards the memory of launches on the CPU: several threads may allocate

}  // namespace

Allocation LaunchMemory::allocate(void* memory, std::size_t bytes) noexcept {
  if (bytes == 0) return {nullptr, nullptr};
  if (bytes > static_cast<std::size_t>(INT64_MAX) - kAlignment)
    return {nullptr,
            message("got a request for %zu bytes of scratch memory, expected at most 2^63", bytes)};
  auto& self = *static_cast<LaunchMemory*>(memory);
  try {
    return self.device_.type == dlpack::kCpu ? self.of_process(bytes) : self.of_torch(bytes);
  } catch (const std::exception& error) {
    return {nullptr, message("%s", error.what())};
  }
}

LaunchMemory::Kept& LaunchMemory::kept() {
  if (kept_ == nullptr) kept_ = std::make_unique<Kept>();
  return *kept_;
}

// PyTorch's current stream belongs to a thread: on another thread, PyTorch would order the memory
// by that thread's stream instead of the launch's.
Allocation LaunchMemory::of_torch(std::size_t bytes) {
  if (std::this_thread::get_id() != thread_)
    return {nullptr, "scratch memory of a GPU is asked for by the launch's own thread alone"};
  const HoldGil held(state_);
  try {
    const auto size = static_cast<std::int64_t>(bytes);
    nb::object tensor = torch_.empty(&size, 1, Dtype::u8, device_);
    TensorInfo info;
    torch_.read(tensor.ptr(), "scratch memory", info);
    kept().tensors.push_back(std::move(tensor));
    return {info.data, nullptr};
  } catch (nb::python_error& error) {
    kept().thrown = std::current_exception();
    kept().error = to_text(error.value());
    return {nullptr, kept().error.c_str()};
  }
}

Allocation LaunchMemory::of_process(std::size_t bytes) {
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  std::unique_ptr<void, Free> block(std::aligned_alloc(kAlignment, rounded));
  if (block == nullptr)
    return {nullptr, message("there is no memory left for %zu bytes of scratch memory", bytes)};
  const std::lock_guard<std::mutex> lock(mutex);
  kept().blocks.push_back(std::move(block));
  return {kept().blocks.back().get(), nullptr};
}

}  // namespace kernelmint
