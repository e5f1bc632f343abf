// The interface between the dispatch table and a kernel.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kernelmint {

// The facts about a call's device that a spec's expressions may use.
struct DeviceFacts {
  std::int64_t sm_count;           // multiprocessors; on the CPU, LaunchContext::num_threads
  std::int64_t max_shared_memory;  // bytes, the most a thread block may have; 0 on the CPU
};

// Memory, or the reason why it is missing: a text that is valid until the launch has returned.
struct Allocation {
  void* data;
  const char* error;
};

// Where and how the caller wants the kernel to run.
struct LaunchContext {
  void* stream;     // cudaStream_t of the caller; null on the CPU
  int device;       // CUDA device ordinal; 0 on the CPU
  int num_threads;  // CPU threads to use, the caller's included; 1 on a GPU
  DeviceFacts facts;

  // Scratch memory whose size the spec cannot know, on the device of the call: `bytes` from a
  // multiple of 256 on, uninitialised; null for 0. On a GPU it comes from PyTorch's allocator, for
  // work on `stream`, and the launch's own thread must ask. It is given back when the launch has
  // returned: work that is then still on the stream may use it. A launch that cannot do without
  // returns the error.
  Allocation allocate(std::size_t bytes) const { return allocator(call, bytes); }

  Allocation (*allocator)(void* call, std::size_t bytes);
  void* call;
};

// The outcome of a launch. `error` is null on success, else the error, a string with static
// storage. If the error is a value that only the kernel can check, `argument` names it, and `error`
// is the reason: the caller gets an InvalidArgument.
struct LaunchResult {
  const char* error = nullptr;
  const char* argument = nullptr;
  std::int64_t index = -1;                      // the element of a tensor; -1: a scalar
  std::int64_t value = 0, least = 0, most = 0;  // the value, and its limits
};

// Instruction sets a translation unit may be compiled for. A CPU kernel is compiled once for each
// that the compiler has, and the best one the processor has is chosen when the kernel is resolved.
namespace isa {
struct cuda {};
struct baseline {};  // the compiler's default target: SSE2 on x86-64, NEON on aarch64
struct avx2 {};      // + FMA and F16C (x86-64-v3)
struct avx512 {};    // + F, BW, DQ, VL (x86-64-v4)
struct amx {};       // + AVX512-BF16 and AMX-BF16 tiles (Sapphire Rapids)
}  // namespace isa

// Runs one configuration. `args` points at the family's generated Args. Instantiated in exactly one
// shard for each pair of configuration and instruction set.
template <class Config, class Isa>
LaunchResult launch(const void* args, const LaunchContext& context);

using LaunchFunction = LaunchResult (*)(const void* args, const LaunchContext& context);

}  // namespace kernelmint
