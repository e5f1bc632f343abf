// The parts that the launches share. Kernels take the arguments of upstream's, in the same order.
#pragma once

#include <cfloat>
#include <cub/block/block_load.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_store.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <cuda/std/functional>

#include "cuda_launch.cuh"
#include "dtypes.h"
#include "integers.h"

// clang-format off: upstream's, each after what it needs
#include "bnb_platform.cuh"
#include "bnb_warp.cuh"
#include "bnb_cub.cuh"
#include "bnb_types.cuh"
// clang-format on

namespace kernelmint::bitsandbytes {

template <class Config>
constexpr int data_type_of() {
  return Config::quant_type == Config::quant_type_type::nf4 ? NF4 : FP4;
}

// The elements that a thread of upstream's quantiser takes.
constexpr int each_thread(int block) { return block >= 1024 ? 4 : 2; }

// Upstream's kernels read through pointers to what is not const.
template <class T, class View>
T* upstreams(const View& view) {
  return const_cast<T*>(view.template as<const T>());
}

}  // namespace kernelmint::bitsandbytes
