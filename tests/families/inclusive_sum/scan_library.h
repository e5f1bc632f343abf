// A library as its users see it: how much memory a scan takes, and the scan.
#pragma once

#include <cstddef>
#include <cstdint>

#include "integers.h"
#include "parallel.h"

namespace scan_library {
inline namespace KERNELMINT_ISA {

constexpr std::int64_t kBlock = 4096;

// Bytes of scratch memory for `count` numbers.
inline std::size_t get_workspace_size(std::int64_t count) {
  return kernelmint::ceil_div(count, kBlock) * sizeof(double);
}

// y[i] = x[0] + … + x[i], over the sums of blocks.
inline void inclusive_sum(const float* x, float* y, std::int64_t count, void* workspace,
                          int num_threads) {
  auto* const before = static_cast<double*>(workspace);  // what is before a block; first its sum
  const std::int64_t blocks = kernelmint::ceil_div(count, kBlock);
  const auto end = [&](std::int64_t block) {
    return block + 1 < blocks ? (block + 1) * kBlock : count;
  };
  kernelmint::parallel_for(blocks, num_threads, [&](std::int64_t block, int /*worker*/) {
    before[block] = 0;
    for (std::int64_t i = block * kBlock; i < end(block); ++i) before[block] += x[i];
  });
  double total = 0;
  for (std::int64_t block = 0; block < blocks; ++block) {
    const double sum = before[block];
    before[block] = total;
    total += sum;
  }
  kernelmint::parallel_for(blocks, num_threads, [&](std::int64_t block, int /*worker*/) {
    double sum = before[block];
    for (std::int64_t i = block * kBlock; i < end(block); ++i)
      y[i] = static_cast<float>(sum += x[i]);
  });
}

}  // namespace KERNELMINT_ISA
}  // namespace scan_library
