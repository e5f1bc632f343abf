// The arguments of a call's kernels on Hopper.
#pragma once

#include <cuda_runtime.h>

#include "attention/flash_backward/problem.h"
#include "attention/sm90a_backward_shared_memory.cuh"
#include "attention/sm90a_tensor_maps.cuh"

namespace kernelmint::flash_backward::sm90a {

using namespace attention::sm90a;
using namespace attention_backward::sm90a;

template <class Arguments>
struct Problem : flash_backward::Problem<Arguments> {
  MappedTensor q, dout;  // [B, H, Sq, D], in boxes of B_r rows by 64 columns
  MappedTensor k, v;     // [B, Hk, Sk, D], in boxes of B_c rows by 64 columns
  int tiles;             // all blocks of keys
  // If the main kernel makes D: [B, H, Sq, D], in boxes of kRowsOfBox rows by 64 columns.
  MappedTensor o_rows, dout_rows;
};

}  // namespace kernelmint::flash_backward::sm90a
