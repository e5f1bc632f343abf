// What the loops of the CPU share. Upstream's are within functions of tensors, so they are written
// anew here, for several threads and whole rows of K; its reductions are taken as they are.
#pragma once

#include <limits>

#include "integers.h"
#include "launch.h"
#include "parallel.h"
#include "torch_scatter/elements.h"

namespace kernelmint::torch_scatter {
inline namespace KERNELMINT_ISA {

#include "scatter_reducer.h"
#include "torch_scatter/reduction.h"

constexpr std::int64_t kColumns = 128;           // of K that are reduced at once
constexpr std::int64_t kElementsOfTask = 16384;  // about

template <class T>
KERNELMINT_ALWAYS_INLINE T smaller(T a, T b) {
  return a < b ? a : b;
}

// The first index outside of its bounds that a thread found.
class Fault {
 public:
  void report(std::int64_t value) { __atomic_store_n(&value_, value, __ATOMIC_RELAXED); }
  LaunchResult result(const char* argument, std::int64_t least, std::int64_t most) const {
    if (value_ == kNone) return {};
    return {.error = "an index is out of bounds",
            .argument = argument,
            .value = value_,
            .least = least,
            .most = most};
  }

 private:
  static constexpr std::int64_t kNone = INT64_MIN;
  std::int64_t value_ = kNone;
};

// Calls body(b, first, last) for parts of the rows of each batch, on all threads; `elements` are
// read for all of them together.
template <class Body>
void for_rows(std::int64_t batches, std::int64_t rows, std::int64_t elements, int threads,
              const Body& body) {
  if (batches == 0 || rows == 0) return;
  const std::int64_t most = ceil_div(elements + batches * rows, kElementsOfTask * batches);
  const std::int64_t parts = smaller(rows, most < 1 ? std::int64_t{1} : most);
  const std::int64_t size = ceil_div(rows, parts);
  parallel_for(batches * parts, threads, [&](std::int64_t task, int) {
    const std::int64_t first = task % parts * size;
    body(task / parts, first, smaller(first + size, rows));
  });
}

// The first of the ascending indices of a batch that is `value` or greater.
template <class View>
std::int64_t lower_bound(const View& index, std::int64_t b, std::int64_t size, std::int64_t value) {
  std::int64_t first = 0;
  while (size > 0) {
    const std::int64_t half = size / 2;
    if (*index.template at<const std::int64_t>(b, first + half) < value) {
      first += half + 1;
      size -= half + 1;
    } else {
      size = half;
    }
  }
  return first;
}

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::torch_scatter
