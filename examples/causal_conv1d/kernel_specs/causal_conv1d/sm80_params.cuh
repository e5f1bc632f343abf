// How upstream's kernels are called: its parameters, from a call's arguments.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "causal_conv1d.h"
#include "causal_conv1d_common.h"
#include "cuda_launch.cuh"
#include "integers.h"

namespace kernelmint::causal_conv1d {

// Upstream's names of the dtypes.
template <class T>
using Upstream = std::conditional_t<std::is_same_v<T, bf16>, at::BFloat16,
                                    std::conditional_t<std::is_same_v<T, fp16>, at::Half, T>>;

// Strides in elements, by upstream's names of dimensions.
struct Strides {
  std::int64_t batch, c, l;
};

template <class View>
Strides channel_first(const View& view) {  // [B, D, L]
  return {view.stride[0], view.stride[1], view.stride[2]};
}
template <class View>
Strides channel_last(const View& view) {  // [B, L, D]
  return {view.stride[0], view.stride[2], view.stride[1]};
}

// Upstream's pointers are not const.
template <class View>
void* address(const View& view) {
  return const_cast<void*>(static_cast<const void*>(view.data));
}

// Fills upstream's parameters: first the members that all calls have, then strides.
class Filler {
 public:
  template <class Args>
  Filler(const Args& args, ConvParamsBase& params) : b_(args.B), d_(args.D), l_(args.L) {
    params.batch = static_cast<int>(args.B);
    params.dim = static_cast<int>(args.D);
    params.seqlen = static_cast<int>(args.L);
    params.width = static_cast<int>(args.W);
    params.silu_activation = args.silu;
    params.x_ptr = address(args.x);
    params.weight_ptr = address(args.weight);
    params.bias_ptr = address(args.bias);
    params.weight_c_stride = static_cast<ConvParamsBase::index_t>(args.weight.stride[0]);
    params.weight_width_stride = static_cast<ConvParamsBase::index_t>(args.weight.stride[1]);
  }

  // The strides of a tensor [B, channel, L], or of `count` such, each of `length`.
  template <class Index>
  void operator()(const Strides& from, Index& batch, Index& c, Index& l) {
    set(from, b_, l_, batch, c, l);
  }
  template <class Index>
  void set(const Strides& from, std::int64_t count, std::int64_t length, Index& batch, Index& c,
           Index& l) {
    batch = static_cast<Index>(from.batch);
    c = static_cast<Index>(from.c);
    l = static_cast<Index>(from.l);
    const std::int64_t rows = length + kChunk;  // the last thread block's
    fits_ = fits_ && (count - 1) * from.batch <= kMost && d_ * from.c <= kMost &&
            rows * from.l <= kMost;
  }

  // Upstream multiplies in 32 bits, and would read elsewhere.
  const char* error() const {
    if (fits_ && b_ * l_ <= INT32_MAX) return nullptr;
    return "upstream's kernels count elements in 32 bits: split the batch";
  }

 private:
  static constexpr std::int64_t kMost = UINT32_MAX, kChunk = 128;
  std::int64_t b_, d_, l_;
  bool fits_ = true;
};

}  // namespace kernelmint::causal_conv1d
