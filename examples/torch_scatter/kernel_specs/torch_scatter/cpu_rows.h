// The CPU's loops. Upstream's loops are within functions of tensors, so they are written anew here,
// for several threads and whole rows of K; upstream's reductions are taken as they are.
#pragma once

#include <limits>

#include "integers.h"
#include "launch.h"
#include "parallel.h"
#include "scatter_reducer.h"
#include "torch_scatter/elements.h"

namespace kernelmint::torch_scatter {
inline namespace KERNELMINT_ISA {

#include "torch_scatter/reduction.h"

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

// Reduces src[b, begin:stop] to row `row` of the result, kMost of K at once: in the order, and with
// the beginnings and ends, of upstream, which has others for segment_coo.
template <class Config, int kMost>
void reduce_some(const typename Config::Args& args, std::int64_t b, std::int64_t row,
                 std::int64_t begin, std::int64_t stop) {
  using Dtype = typename Config::dtype;
  using T = element_t<Dtype>;
  using Sum = typename Element<Dtype>::opmath;
  constexpr ReductionType kReduce = reduction_of<Config>();
  constexpr bool kHasArg = kReduce == MIN || kReduce == MAX;
  constexpr bool kIsCoo = requires { args.initial; };
  for (std::int64_t k = 0; k < args.K; k += kMost) {
    const int columns = kMost == 1 ? 1 : static_cast<int>(smaller<std::int64_t>(kMost, args.K - k));
    const T* src = reinterpret_cast<const T*>(args.src.template at<const Dtype>(b, begin, k));
    const T* initial = nullptr;
    Sum values[kMost];
    std::int64_t where[kMost];
    if constexpr (kIsCoo) {
      if (args.initial.data != nullptr)
        initial = reinterpret_cast<const T*>(args.initial.template at<const Dtype>(b, row, k));
      for (int i = 0; i < columns; ++i)
        values[i] = static_cast<Sum>(initial ? initial[i] : Reducer<T, kReduce>::init());
    } else {
      for (int i = 0; i < columns; ++i) values[i] = Reducer<Sum, kReduce>::init();
    }
    for (int i = 0; i < columns; ++i) where[i] = args.E;
    for (std::int64_t e = begin; e < stop; ++e, src += args.K)
      for (int i = 0; i < columns; ++i)
        Reducer<Sum, kReduce>::update(&values[i], static_cast<Sum>(src[i]), &where[i], e);
    T* result = reinterpret_cast<T*>(args.result.template at<Dtype>(b, row, k));
    std::int64_t unused;
    std::int64_t* arg = &unused;
    for (int i = 0; i < columns; ++i) {
      if constexpr (kHasArg) *(arg = args.arg.template at<std::int64_t>(b, row, k + i)) = args.E;
      if (begin == stop && initial != nullptr)
        result[i] = initial[i];
      else
        Reducer<T, kReduce>::write(result + i, static_cast<T>(values[i]), arg, where[i],
                                   static_cast<int>(stop - begin));
      // Elements that still hold their first value become 0.
      if (kIsCoo && kHasArg && initial == nullptr && result[i] == Reducer<T, kReduce>::init())
        result[i] = T(0);
    }
  }
}

template <class Config>
void reduce_row(const typename Config::Args& args, std::int64_t b, std::int64_t row,
                std::int64_t begin, std::int64_t stop) {
  if (args.K == 1) return reduce_some<Config, 1>(args, b, row, begin, stop);
  reduce_some<Config, 128>(args, b, row, begin, stop);
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
