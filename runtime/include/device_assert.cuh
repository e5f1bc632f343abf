// Assertions in device code, which only a debug build has: -C cmake.define.KERNELMINT_DEBUG=ON.
// (Not <cassert>'s: CMake's release flags define NDEBUG even in a debug build of the kernels.)
#pragma once

#if KERNELMINT_DEBUG

#include <cstdio>

#define KERNELMINT_DEVICE_ASSERT(condition)                                                 \
  do {                                                                                      \
    if (!(condition)) {                                                                     \
      std::printf("%s:%d: block %d, thread %d: assertion failed: %s\n", __FILE__, __LINE__, \
                  blockIdx.x, threadIdx.x, #condition);                                     \
      __trap();                                                                             \
    }                                                                                       \
  } while (false)

#else

#define KERNELMINT_DEVICE_ASSERT(condition) static_cast<void>(0)

#endif
