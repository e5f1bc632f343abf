// Values of hidden positions: where the queries of a block of the kernel after the main one lie.
#pragma once

#include <cstdint>

#include "attention/backward_hidden_values.cuh"
#include "attention/prefill_backward_any_lengths.cuh"
#include "attention/prefill_backward_problem.h"
#include "attention/prefill_backward_rows.cuh"

namespace kernelmint::flash_prefill_backward {

// The queries of the thread block.
template <class Config>
struct FindQueries {
  template <class Problem>
  __device__ static attention_backward::QueriesOfHead of(
      const Problem& problem, const BlockOfQueries<Config, Problem>& at) {
    using Lengths = AnyLengths<Config, Problem>;
    const auto& args = problem.args;
    const Region keys = keys_of<Config>(args, problem.sequences, at.sequence);
    const std::int64_t rows = std::int64_t{problem.query_blocks} * Config::B_r;
    attention_backward::QueriesOfHead queries{
        .head = at.head,
        .group = problem.group,
        .sequence = at.sequence,
        .query_entry = at.region.entry,
        .query_row = at.region.first_row,
        .first_query = at.region.begin,
        .end_query = at.region.end,
        .key_entry = keys.entry,
        .key_row = keys.first_row,
        .first_key = keys.begin,
        .end_key = keys.end,
        .first_row = at.block * Config::B_r,
        .left = Lengths::reach(args.window_left),
        .right = Lengths::reach(args.window_right),
        .sums = std::int64_t{at.region.first_block} * Config::B_r,
        .stride = rows,
        .columns = static_cast<int>(args.D),
        .value_columns = static_cast<int>(args.Dv),
        .scale = args.softmax_scale,
        .cap = problem.cap};
    if (args.alibi_slopes.data != nullptr)
      queries.slopes = {args.alibi_slopes.template at<const float>(at.sequence),
                        {args.alibi_slopes.stride[1]}};
    return queries;
  }
  template <class Problem>
  __device__ attention_backward::QueriesOfHead operator()(const Problem& problem) const {
    return of(problem, BlockOfQueries<Config, Problem>::to_finish(problem));
  }
};

// True if queries of the block see keys, and may not see others of the same blocks.
template <class Config, class Problem>
__device__ __forceinline__ bool hides_keys(const Problem& problem,
                                           const BlockOfQueries<Config, Problem>& at) {
  return (problem.args.window_left >= 0 || problem.args.window_right >= 0) && at.sees_keys(problem);
}

}  // namespace kernelmint::flash_prefill_backward
