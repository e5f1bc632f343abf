// The threads of CPU kernels.
#pragma once

#include <cstdint>

namespace kernelmint {

// Host::parallel (library.h).
void run_parallel(std::int64_t count, int num_threads,
                  bool (*range)(void* context, std::int64_t begin, std::int64_t end, int worker),
                  void* context);

}  // namespace kernelmint
