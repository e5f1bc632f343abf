// The arguments of a call's kernels on Hopper.
#pragma once

#include "attention/prefill_backward_problem.h"
#include "attention/sm90a_tensor_maps.cuh"

namespace kernelmint::flash_prefill_backward::sm90a {

using attention::sm90a::MappedTensor;

struct TensorMaps {
  MappedTensor q, dout;  // [Nq, H, Tq, D], in boxes of B_r rows by 64 columns
  MappedTensor k, v;     // [Nk, Hk, Tk, D], in boxes of B_c rows by 64 columns
};

template <class Arguments>
struct Problem : flash_prefill_backward::Problem<Arguments, TensorMaps> {};

}  // namespace kernelmint::flash_prefill_backward::sm90a
