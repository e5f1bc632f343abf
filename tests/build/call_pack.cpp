// Calls the f32 kernel of a new project's library (`kernelmint init`) as the runtime does, without
// Python: for processors that only an emulator runs. Prints the key of the kernel.
#include <dlfcn.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <vector>

#include "library.h"

using namespace kernelmint;

namespace {

void run(std::int64_t count, int,
         bool (*range)(void* context, std::int64_t begin, std::int64_t end, int worker),
         void* context) {
  range(context, 0, count, 0);
}

const KernelEntry* find(const FamilyEntry& family) {
  for (int t = 0; t < family.num_targets; ++t)
    for (std::size_t k = 0; k < family.targets[t]->num_kernels; ++k)
      if (const KernelEntry& kernel = family.targets[t]->kernels[k];
          kernel.baseline != nullptr && std::strstr(kernel.key, ".f32-") != nullptr)
        return &kernel;
  return nullptr;
}

int fail(const char* reason) {
  std::fprintf(stderr, "call_pack: %s\n", reason);
  return 1;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return fail("expected the path of a library");
  void* const library = dlopen(arguments[1], RTLD_NOW);
  if (library == nullptr) return fail(dlerror());
  const auto entry_of = reinterpret_cast<LibraryFunction>(dlsym(library, kLibrarySymbol));
  if (entry_of == nullptr) return fail("the library has no entry");
  static constexpr Host kHost = {.abi = kAbi, .parallel = &run};
  const LibraryEntry& entry = *entry_of(&kHost);
  const FamilyEntry& family = *entry.family;
  const KernelEntry* const kernel = find(family);
  if (entry.abi != kAbi || kernel == nullptr) return fail("no kernel of f32");

  constexpr int kRows = 5, kColumns = 1001;
  std::vector<float> x(kRows * kColumns), y(x.size()), z(x.size(), -1.0f);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(i % 97);
    y[i] = static_cast<float>(i % 31) - 15.0f;
  }
  const std::int64_t strides[kMaxRank] = {kColumns, 1};
  const BoundTensor tensors[] = {{x.data(), strides}, {y.data(), strides}, {z.data(), strides}};
  std::int64_t symbols[kMaxSymbols] = {};
  for (int i = 0; i < family.num_symbols; ++i)
    symbols[i] = std::strcmp(family.symbols[i], "M") == 0 ? kRows : kColumns;
  ScalarValue scalars[kMaxScalars] = {};
  scalars[0].floating = 2.5;
  alignas(std::max_align_t) std::byte args[kMaxArgsBytes];
  family.fill(args, tensors, symbols, scalars);
  LaunchContext context{};
  context.num_threads = 2;
  context.facts = {2, 0};
  const LaunchResult result = kernel->baseline(args, context);
  if (result.error != nullptr) return fail(result.error);
  for (std::size_t i = 0; i < x.size(); ++i)
    if (z[i] != 2.5f * x[i] + y[i]) return fail("a wrong sum");
  std::puts(kernel->key);
}
