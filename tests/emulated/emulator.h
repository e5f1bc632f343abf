// CUDA's thread blocks on a CPU, for kernels that keep to what is here and in ptx.h: included ahead
// of a generated .cu file, which a C++ compiler then takes as it is. A thread is a fibre. Fibres
// run one at a time, warp after warp in random order, until they wait for something; some warps are
// much slower than others; asynchronous copies happen at any time between their request and the
// moment that their barrier tells; what they are to write is poisoned until then. Products of a
// warpgroup happen when they are waited for. So what is read too early, or overwritten too early,
// is wrong, and a wait without an end is found.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <type_traits>
#include <vector>

// What nvcc has and a C++ compiler does not; after CUDA's headers, which would take themselves for
// nvcc's.
#define __CUDACC__ 1
#define __CUDA_ARCH__ 900
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__
#undef __noinline__
#define __noinline__

namespace emulator {

struct Index {
  unsigned x, y, z;
};

// A wgmma of one thread: d, whose other side has n columns, and its operands.
struct Product {
  float* d;
  int n;
  const std::uint32_t* a;  // null: in shared memory
  std::uint64_t a_descriptor, b_descriptor;
  bool accumulate, is_a_transposed, is_b_transposed, is_bf16;
};

// What a thread has requested, in groups that it waits for.
template <class Request>
struct Groups {
  std::vector<Request> open;
  std::deque<std::vector<Request>> closed;

  void close() {
    closed.push_back(std::move(open));
    open.clear();
  }
};

using Action = std::function<void()>;

inline void finish(Groups<Action>& groups, std::size_t pending) {
  for (; groups.closed.size() > pending; groups.closed.pop_front())
    for (const Action& copy : groups.closed.front()) copy();
}

struct Fibre {
  void* stack_pointer;
  unsigned thread;
  bool is_done = false;
  const char* waits_for = "";
  long which = 0;
  Groups<Product> products;
  Groups<Action> copies, bulk_copies;
};

// Threads that do something together.
struct Crew {
  int arrived = 0;
  unsigned generation = 0;
  Fibre* fibres[128];
  alignas(16) unsigned char given[128][32], got[128][32];
};

inline constexpr std::size_t kSharedBytes = 232448;
inline constexpr std::uint32_t kFirstAddress = 1024;  // of shared memory

extern Fibre* current;
extern Crew warps[32], warpgroups[8];

// Lets others run; called in a loop, until what is waited for is there.
void wait(const char* what, long which = 0);
void note_progress();         // something has changed that others may wait for
int still_running(int size);  // of as many threads, the current one among them
void later(Action copy);
void arrive(int barrier, int threads, bool waits);
// Ends the launch with an error. What called it stands still.
void fail(const char* format, ...);
unsigned char* shared(std::uint32_t address, std::size_t bytes);  // aligned to its size
std::uint32_t address_of(const void* pointer);
void run(dim3 grid, dim3 block, const Action& kernel);

// Each of `size` threads, but those that have ended, gives a value, and the last one has `act` make
// of them what each gets.
template <class Got, class Given, class F>
Got together(Crew& crew, int size, const char* what, const Given& given, const F& act) {
  static_assert(sizeof(Given) <= 32 && sizeof(Got) <= 32);
  const int place = static_cast<int>(current->thread) % size;
  std::memcpy(crew.given[place], &given, sizeof given);
  crew.fibres[place] = current;
  const unsigned generation = crew.generation;
  ++crew.arrived;
  while (crew.generation == generation) {
    if (crew.arrived < still_running(size)) {
      wait(what);
      continue;
    }
    act(crew);
    crew.arrived = 0;
    ++crew.generation;
    note_progress();
  }
  Got got;
  std::memcpy(&got, crew.got[place], sizeof got);
  return got;
}

// The same of a warp: f(lane, values) is what a lane gets.
template <class Got, class Given, class F>
Got by_warp(const char* what, const Given& given, const F& f) {
  return together<Got>(warps[current->thread / 32], 32, what, given, [&](Crew& crew) {
    std::array<Given, 32> values;
    for (int lane = 0; lane < 32; ++lane)
      std::memcpy(&values[lane], crew.given[lane], sizeof(Given));
    for (int lane = 0; lane < 32; ++lane) {
      const Got got = f(lane, values);
      std::memcpy(crew.got[lane], &got, sizeof got);
    }
  });
}

template <class T>
T shuffled(const char* what, T value, int argument, int (*from)(int lane, int argument)) {
  struct Given {
    T value;
    int argument;
  };
  return by_warp<T>(what, Given{value, argument}, [&](int lane, const auto& values) {
    return values[from(lane, values[lane].argument)].value;
  });
}

}  // namespace emulator

extern emulator::Index threadIdx, blockIdx, gridDim, blockDim;

template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  return emulator::shuffled("__shfl_sync", value, lane, [](int, int from) { return from % 32; });
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return emulator::shuffled("__shfl_xor_sync", value, mask, [](int l, int m) { return l ^ m; });
}
template <class T>
T __shfl_up_sync(unsigned, T value, int distance) {
  return emulator::shuffled("__shfl_up_sync", value, distance,
                            [](int l, int d) { return l < d ? l : l - d; });
}
template <class T>
T __shfl_down_sync(unsigned, T value, int distance) {
  return emulator::shuffled("__shfl_down_sync", value, distance,
                            [](int l, int d) { return l + d > 31 ? l : l + d; });
}
inline unsigned __ballot_sync(unsigned, int predicate) {
  return emulator::by_warp<unsigned>("__ballot_sync", predicate, [](int, const auto& values) {
    unsigned bits = 0;
    for (int lane = 0; lane < 32; ++lane) bits |= unsigned{values[lane] != 0} << lane;
    return bits;
  });
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) == ~0u;
}
inline void __syncwarp(unsigned = ~0u) {
  emulator::by_warp<int>("__syncwarp", 0, [](int, const auto&) { return 0; });
}
inline void __syncthreads() {
  emulator::arrive(0, static_cast<int>(blockDim.x * blockDim.y), true);
}
inline int __syncthreads_or(int predicate) {
  static int any = 0;
  any |= predicate;
  __syncthreads();
  const int result = any;
  __syncthreads();
  any = 0;
  __syncthreads();
  return result;
}
inline void __threadfence() {}

inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __frcp_rn(float x) { return 1 / x; }
inline float __log2f(float x) { return std::log2(x); }

// Fibres run one at a time, and blocks one after the other.
template <class T, class U>
T atomicAdd(T* at, U value) {
  const T before = *at;
  if constexpr (std::is_same_v<T, __half>)
    *at = static_cast<float>(before) + static_cast<float>(value);
  else
    *at = static_cast<T>(before + value);
  return before;
}
template <class T, class U, class V>
T atomicCAS(T* at, U expected, V value) {
  const T before = *at;
  if (before == static_cast<T>(expected)) *at = static_cast<T>(value);
  return before;
}
template <class T, class U>
T atomicMin(T* at, U value) {
  const T before = *at;
  *at = static_cast<T>(value) < before ? static_cast<T>(value) : before;
  return before;
}
template <class T, class U>
T atomicMax(T* at, U value) {
  const T before = *at;
  *at = before < static_cast<T>(value) ? static_cast<T>(value) : before;
  return before;
}
template <class T>
T __ldcg(const T* at) {
  return *at;
}
template <class T>
T __ldcs(const T* at) {
  return *at;
}
template <class T>
T __ldg(const T* at) {
  return *at;
}
template <class T>
void __stcg(T* at, T value) {
  *at = value;
}

template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  return b < a ? b : a;
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  return a < b ? b : a;
}

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               const Arguments&... arguments) {
  emulator::run(config->gridDim, config->blockDim, [&] { kernel(arguments...); });
  return cudaSuccess;
}
