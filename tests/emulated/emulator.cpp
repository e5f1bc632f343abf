#include "emulator.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <string>

#include "launch.h"
#include "ptx.h"

emulator::Index threadIdx, blockIdx, gridDim, blockDim;

extern "C" {
alignas(1024) unsigned char emulated_shared_memory[emulator::kSharedBytes];
}

// Keeps what a function call keeps, the registers and the stack, and goes on where `to` was left.
extern "C" void emulator_switch(void** from, void* to);
asm(R"(
  .globl emulator_switch
emulator_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
)");

namespace emulator {

Fibre* current;
Crew warps[32], warpgroups[8];

namespace {

constexpr std::size_t kStackBytes = 256 << 10;
constexpr int kKeptRegisters = 6;

struct Barrier {
  int arrived = 0;
  unsigned generation = 0;
};

std::mt19937 generator(0);
Barrier barriers[16];
std::vector<Fibre> fibres;
std::vector<Action> copies;  // asynchronous ones, on their way
unsigned long progress;
std::string error;
void* scheduler;
const Action* entry;

void begin_fibre() {
  (*entry)();
  current->is_done = true;
  note_progress();
  emulator_switch(&current->stack_pointer, scheduler);
}

void finish_a_copy() {
  std::swap(copies[generator() % copies.size()], copies.back());
  const Action copy = std::move(copies.back());
  copies.pop_back();
  copy();
  note_progress();
}

std::string waiting() {
  std::string result;
  for (std::size_t i = 0; i < fibres.size(); i += 32)
    if (const Fibre& fibre = fibres[i]; !fibre.is_done)
      result += "; thread " + std::to_string(i) + " waits for " + fibre.waits_for + " " +
                std::to_string(fibre.which);
  return result;
}

void run_block(std::vector<char>& stacks, std::size_t threads) {
  fibres.assign(threads, {});
  for (std::size_t i = 0; i < fibres.size(); ++i) {
    char* const end = stacks.data() + (i + 1) * kStackBytes;
    auto** top = reinterpret_cast<void**>(reinterpret_cast<std::uintptr_t>(end) / 16 * 16) - 2;
    *--top = nullptr;  // the entry finds the stack as if it were called
    *--top = reinterpret_cast<void*>(&begin_fibre);
    fibres[i].stack_pointer = top - kKeptRegisters;
    fibres[i].thread = static_cast<unsigned>(i);
  }
  std::vector<std::size_t> order(fibres.size() / 32);
  std::iota(order.begin(), order.end(), 0);
  std::vector<int> slowness(order.size());  // how often of 64 times a warp does nothing
  for (int& of : slowness) of = std::array{0, 16, 62, 63}[generator() % 4];
  const auto is_done = [](const Fibre& fibre) { return fibre.is_done; };
  for (bool is_quiet = false; !std::all_of(fibres.begin(), fibres.end(), is_done);) {
    const unsigned long before = progress;
    std::shuffle(order.begin(), order.end(), generator);
    for (const std::size_t warp : order) {
      if (!is_quiet && static_cast<int>(generator() % 64) < slowness[warp]) continue;
      for (std::size_t i = 32 * warp; i < 32 * warp + 32; ++i) {
        if (fibres[i].is_done) continue;
        current = &fibres[i];
        threadIdx = {fibres[i].thread % blockDim.x, fibres[i].thread / blockDim.x, 0};
        emulator_switch(&scheduler, current->stack_pointer);
        if (!error.empty()) return;
      }
      if (!copies.empty() && generator() % 2 == 0) finish_a_copy();
    }
    if (progress != before) {
      is_quiet = false;
    } else if (!copies.empty()) {
      finish_a_copy();
    } else if (is_quiet) {
      return fail("block %u waits without end%s", blockIdx.x, waiting().c_str());
    } else {
      is_quiet = true;
    }
  }
  while (!copies.empty()) finish_a_copy();
}

std::vector<std::unique_ptr<char[]>> scratch;

kernelmint::Allocation allocate(void*, std::size_t bytes) {
  scratch.push_back(std::make_unique<char[]>(bytes + 256));
  const auto address = reinterpret_cast<std::uintptr_t>(scratch.back().get());
  return {reinterpret_cast<void*>((address + 255) / 256 * 256), nullptr};
}

}  // namespace

void note_progress() { ++progress; }

int still_running(int size) {
  const auto first = fibres.begin() + current->thread / size * size;
  return size - static_cast<int>(std::count_if(first, first + size,
                                               [](const Fibre& fibre) { return fibre.is_done; }));
}

void later(Action copy) { copies.push_back(std::move(copy)); }

void wait(const char* what, long which) {
  current->waits_for = what;
  current->which = which;
  emulator_switch(&current->stack_pointer, scheduler);
}

void fail(const char* format, ...) {
  char text[2000];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (error.empty()) error = text;
}

void arrive(int id, int threads, bool waits) {
  Barrier& barrier = barriers[id];
  const unsigned generation = barrier.generation;
  note_progress();
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.generation;
  }
  while (waits && barrier.generation == generation) wait("barrier", id);
}

unsigned char* shared(std::uint32_t address, std::size_t bytes) {
  if (address % bytes == 0 && address >= kFirstAddress &&
      address + bytes <= kFirstAddress + kSharedBytes)
    return emulated_shared_memory + (address - kFirstAddress);
  fail("thread %u: %zu bytes at %u are not in shared memory, or not aligned", current->thread,
       bytes, address);
  for (;;) wait("nothing");
}

std::uint32_t address_of(const void* pointer) {
  return static_cast<std::uint32_t>(static_cast<const unsigned char*>(pointer) -
                                    emulated_shared_memory) +
         kFirstAddress;
}

void run(dim3 grid, dim3 block, const Action& kernel) {
  static std::vector<char> stacks;
  const std::size_t threads = std::size_t{block.x} * block.y;
  if (block.z != 1 || threads % 32 != 0)
    return fail("blocks of two dimensions and whole warps are emulated");
  stacks.resize(std::max(stacks.size(), threads * kStackBytes + 16));
  entry = &kernel;
  gridDim = {grid.x, grid.y, grid.z};
  blockDim = {block.x, block.y, 1};
  for (unsigned i = 0; i < grid.x * grid.y * grid.z && error.empty(); ++i) {
    blockIdx = {i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y};
    std::fill(std::begin(emulated_shared_memory), std::end(emulated_shared_memory), 0x42);
    for (Barrier& barrier : barriers) barrier = {};
    for (Crew& crew : warps) crew.arrived = 0;
    for (Crew& crew : warpgroups) crew.arrived = 0;
    run_block(stacks, threads);
  }
  copies.clear();
}

}  // namespace emulator

// Launches on as many multiprocessors; null, or what went wrong.
const char* emulator_launch(kernelmint::LaunchResult (*launch)(const void*,
                                                               const kernelmint::LaunchContext&),
                            const void* arguments, int sm_count, unsigned seed) {
  using namespace emulator;
  generator.seed(seed);
  error.clear();
  const auto result =
      launch(arguments, {nullptr, 0, 1, {sm_count, kSharedBytes}, &allocate, nullptr});
  scratch.clear();
  if (result.error != nullptr) error = result.error;
  return error.empty() ? nullptr : error.c_str();
}

// The CUDA runtime, as far as launches ask it.
extern "C" {
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudaLaunchConfig_t*) {
  *clusters = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 0;  // no cooperative launches: blocks run one after the other
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int,
                                                          std::size_t) {
  *blocks = 1;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error of CUDA"; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetId(cudaStream_t, unsigned long long* id) {
  *id = 0;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t*, unsigned) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return *memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaGetSymbolAddress(void** address, const void* symbol) {
  *address = const_cast<void*>(symbol);
  return cudaSuccess;
}
}

namespace {

CUresult encode(CUtensorMap* map, CUtensorMapDataType, cuuint32_t rank, void* data,
                const cuuint64_t* extents, const cuuint64_t* strides, const cuuint32_t* box,
                const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  kernelmint::ptx::TensorMap made{static_cast<char*>(data), {}, {2}, {}, {}};
  std::fill_n(made.extents, 5, 1);
  std::fill_n(made.box, 5, 1);
  bool is_right = reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
  for (cuuint32_t i = 0; i < rank; ++i) {
    made.extents[i] = static_cast<std::int64_t>(extents[i]);
    made.box[i] = static_cast<int>(box[i]);
    if (i > 0) made.strides[i] = static_cast<std::int64_t>(strides[i - 1]);
    is_right &= extents[i] > 0 && box[i] <= 256 && (i == 0 || strides[i - 1] % 16 == 0);
  }
  made.row_bytes = swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 64 : 128;
  is_right &= box[0] * 2 == static_cast<cuuint32_t>(made.row_bytes);
  std::memcpy(map, &made, sizeof made);
  return is_right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned,
                                                        unsigned long long,
                                                        cudaDriverEntryPointQueryResult*) {
  *function = reinterpret_cast<void*>(&encode);  // nothing else is asked for
  return cudaSuccess;
}
