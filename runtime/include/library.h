// The boundary between a pack's library, which holds the kernels of one family, and the runtime
// that loads it. They are built apart, by different compilers, and share no C++ library: plain data
// crosses, and no exception.
#pragma once

#include <cstdint>

#include "registry.h"

namespace kernelmint {

// The layout of everything in this header, registry.h and launch.h.
inline constexpr std::uint32_t kAbi = 6;

// The functions of the runtime that a library may call.
struct Host {
  std::uint32_t abi;
  // Hands out [0, count) in chunks to up to `num_threads` threads, the caller's included, and
  // returns when all that began have returned. A range that returns false is the last one begun.
  void (*parallel)(std::int64_t count, int num_threads,
                   bool (*range)(void* context, std::int64_t begin, std::int64_t end, int worker),
                   void* context);
};

struct LibraryEntry {
  std::uint32_t abi;      // kAbi of the library; the first member in every version
  const char* generated;  // the fingerprint of the family's generated files
  const char* build;      // the hash of all that the library is made of: pack.json's `fingerprint`
  const FamilyEntry* family;
};

// The one symbol that a library exports, in every version of the ABI. It keeps `host`.
inline constexpr char kLibrarySymbol[] = "kernelmint_library";
using LibraryFunction = const LibraryEntry* (*)(const Host* host);

}  // namespace kernelmint
