// Values of hidden positions: where the queries of a block of the kernel after the main one lie.
#pragma once

#include <cstdint>

#include "attention/backward_hidden_values.cuh"
#include "attention/flash_backward/problem.h"

namespace kernelmint::flash_backward {

// The queries of the thread block, under the causal mask.
template <class Config>
struct FindQueries {
  template <class Problem>
  __device__ attention_backward::QueriesOfHead operator()(const Problem& problem) const {
    const auto& args = problem.args;
    const int heads = static_cast<int>(args.H), keys = static_cast<int>(args.Sk);
    const int index = static_cast<int>(blockIdx.x) / problem.query_blocks;
    const int rows = problem.query_blocks * Config::B_r;
    return {.head = index % heads,
            .group = problem.group,
            .query_entry = index / heads,
            .end_query = static_cast<int>(args.Sq),
            .key_entry = index / heads,
            .end_key = keys,
            .first_row = static_cast<int>(blockIdx.x) % problem.query_blocks * Config::B_r,
            .left = 1 << 30,
            .sums = std::int64_t{index / heads} * heads * rows,
            .stride = rows,
            .columns = Config::d_head,
            .value_columns = Config::d_head,
            .scale = args.scale};
  }
};

}  // namespace kernelmint::flash_backward
