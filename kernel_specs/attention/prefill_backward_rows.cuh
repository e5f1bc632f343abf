// The work of the kernels before and after the main one: values of each row of scores, and the
// gradients of sinks.
#pragma once

#include <cstdint>

#include "attention/backward_product.cuh"
#include "attention/prefill_backward_any_lengths.cuh"
#include "attention/prefill_backward_problem.h"
#include "integers.h"
#include "ptx/dependent_launch.cuh"
#include "ptx/math.cuh"
#include "register_tile.cuh"

namespace kernelmint::flash_prefill_backward {

// The head and the block of queries of a thread block, and the rows of its sequence.
template <class Config, class Problem>
struct BlockOfQueries {
  int head, index, block, sequence;
  Region region;

  // Thread blocks have all heads of a block of queries one after the other.
  __device__ explicit BlockOfQueries(const Problem& problem) {
    const auto& args = problem.args;
    const int heads = static_cast<int>(args.H);
    head = static_cast<int>(blockIdx.x) % heads;
    const int place = static_cast<int>(blockIdx.x) / heads;
    index = head * problem.query_blocks + place;
    sequence = sequence_of<Config::B_r>(args.cu_seqlens_q, static_cast<int>(args.Tq),
                                        problem.sequences, place);
    region = queries_of<Config>(args, problem.sequences, sequence);
    block = place - region.first_block;
  }
  // The call's index-th block in its order: a sequence's blocks of a head come one after the other.
  // One past the last does not exist.
  __device__ BlockOfQueries(const Problem& problem, int of_call)
      : head(0), index(0), block(0), sequence(0), region{} {
    const int heads = static_cast<int>(problem.args.H);
    const auto& order = problem.order;
    if (of_call / heads >= __ldcg(order.counts + 1)) return;
    sequence = __ldcg(order.query_sequences + of_call / heads);
    region = queries_of<Config>(problem.args, problem.sequences, sequence);
    const int blocks = ceil_div(region.rows, Config::B_r);
    const int at = of_call - __ldcg(order.first_query_places + sequence) * heads;
    head = at / blocks, block = at % blocks;
    index = head * problem.query_blocks + region.first_block + block;
  }
  // Thread blocks of the kernel after the main one are in the call's order, if it has one.
  __device__ static BlockOfQueries to_finish(const Problem& problem) {
    if constexpr (requires { problem.order; })
      return BlockOfQueries(problem, static_cast<int>(blockIdx.x));
    else
      return BlockOfQueries(problem);
  }
  __device__ bool sees_keys(const Problem& problem) const {
    const Region keys = keys_of<Config>(problem.args, problem.sequences, sequence);
    return AnyLengths<Config, Problem>::sees_keys(problem, region, keys, block);
  }
  // False if no sequence has the block.
  __device__ bool exists() const { return block * Config::B_r < region.rows; }
};

// dQ of queries before the first sequence, by the thread block of its first queries.
template <class Element, class Problem, class Block>
__device__ inline void clear_queries_before(const Problem& problem, const Block& at) {
  const auto& args = problem.args;
  if (args.cu_seqlens_q.data == nullptr || at.sequence != 0 || at.block != 0) return;
  clear_rows_before<Element>(args.dq, at.region.first_row, at.head, args.D,
                             static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
}

// Keeps D, the sum of dO O, and the log-sum-exp as a power of two, of a row of a block; the latter
// is returned. Of a row without keys it is infinite, so that its probabilities are 0, and D is 0 as
// well; of a row of no sequence it is -inf.
template <class Config, class Problem>
__device__ __forceinline__ float keep_values(const Problem& problem,
                                             const BlockOfQueries<Config, Problem>& at, int place,
                                             float& sum) {
  const auto& args = problem.args;
  const int row = at.block * Config::B_r + place;
  float log_sum = -INFINITY;
  if (row >= at.region.begin && row < at.region.end) {
    const float* const lse = args.lse.template as<const float>() +
                             at.region.entry * args.lse.stride[0] + at.head * args.lse.stride[1];
    log_sum = lse[(std::int64_t{at.region.first_row} + row) * args.lse.stride[2]];
    if (log_sum == -INFINITY) log_sum = INFINITY, sum = 0;
  } else {
    sum = 0;
  }
  const std::int64_t to = std::int64_t{at.index} * Config::B_r + place;
  // With dropout all is divided by 1 - p at the end.
  problem.deltas[to] = sum;
  if constexpr (attention::DropsOut<typename Config::Args>)
    problem.deltas[to] = sum * (1 - args.dropout_p);
  problem.log_sums[to] = log_sum * kLog2E;
  return log_sum;
}

// A block's dQ of zero.
template <class Config, class Problem>
__device__ __forceinline__ void clear_block(const Problem& problem, int index) {
  auto* const dq = reinterpret_cast<float4*>(problem.dq + std::int64_t{index} *
                                                              (Config::B_r * Config::padded_head));
  for (int i = static_cast<int>(threadIdx.x); i < Config::B_r * Config::padded_head / 4; i += 256)
    dq[i] = float4{0, 0, 0, 0};
}
template <class Problem>
__device__ __forceinline__ void clear_counters(const Problem& problem) {
  for (std::int64_t i = blockIdx.x * 256 + threadIdx.x; i < problem.counter_count;
       i += gridDim.x * 256)
    problem.counters[i] = 0;
}

// The values of each query, and a dQ of zero if it is not stored. As many neighbouring lanes share
// a row as it has 16 bytes, or the next power of two.
template <class Config, class Problem>
__device__ __forceinline__ void prepare_block(const Problem& problem) {
  using Element = typename Config::dtype;
  constexpr int kChunks = Config::d_head / 8, kLanes = kChunks <= 8 ? 8 : kChunks <= 16 ? 16 : 32;
  constexpr int kRowsAtOnce = 256 / kLanes, kPasses = ceil_div(Config::B_r, kRowsAtOnce);
  ptx::let_next_kernel_start();
  const auto& args = problem.args;
  const BlockOfQueries<Config, Problem> at(problem);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes;
  clear_counters(problem);
  float of_sink = 0;
  if (at.exists()) {
    const int first_row = at.block * Config::B_r;
    const auto rows_of = [&](const auto& tensor) {
      return tensor.template as<const Element>() + at.region.entry * tensor.stride[0] +
             at.region.first_row * tensor.stride[1] + at.head * tensor.stride[2] + lane * 8;
    };
    const Element *const o = rows_of(args.o), *const dout = rows_of(args.dout);
    uint4 outputs[kPasses], gradients[kPasses];
    unroll<kPasses>([&](int i) {
      const std::int64_t row = first_row + i * kRowsAtOnce + thread / kLanes;
      outputs[i] = gradients[i] = uint4{0, 0, 0, 0};
      if (row >= at.region.begin && row < at.region.end && lane < kChunks && lane * 8 < args.Dv) {
        outputs[i] = __ldcs(reinterpret_cast<const uint4*>(o + row * args.o.stride[1]));
        gradients[i] = __ldcg(reinterpret_cast<const uint4*>(dout + row * args.dout.stride[1]));
      }
    });
    if (!problem.stores_first ||
        (problem.one_counter && at.block == (at.region.end - 1) / Config::B_r))
      clear_block<Config>(problem, at.index);
    const float sink = args.s_aux.data == nullptr || args.ds_aux.data == nullptr
                           ? -INFINITY
                           : static_cast<float>(*args.s_aux.template at<const Element>(at.head));
    unroll<kPasses>([&](int i) {
      float sum = attention_backward::product<Element>(outputs[i], gradients[i]);
      for (int distance = kLanes / 2; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(~0u, sum, distance);
      const int place = i * kRowsAtOnce + thread / kLanes;
      if (lane != 0 || place >= Config::B_r) return;
      const float log_sum = keep_values(problem, at, place, sum);
      if (sink > -INFINITY && log_sum != -INFINITY)
        of_sink += ptx::exp2((sink - log_sum) * kLog2E) * sum;
    });
  }
  if constexpr (attention::GivesSlopes<typename Config::Args>)
    for (std::int64_t i = blockIdx.x * 256 + thread; i < problem.slope_sum_count;
         i += gridDim.x * 256)
      problem.slope_sums[i] = 0;
  if (args.ds_aux.data == nullptr) return;
  for (int distance = 16; distance > 0; distance /= 2)
    of_sink += __shfl_xor_sync(~0u, of_sink, distance);
  if (thread % 32 == 0) problem.sinks[at.index * 8 + thread / 32] = of_sink;
}

// A sink's probability has no value: of its score's gradient only -P D is left. One warp sums a
// head's, always in the same order.
template <class Config, class Problem>
__device__ __forceinline__ void finish_sink(const Problem& problem) {
  using Element = typename Config::dtype;
  const std::int64_t count = std::int64_t{problem.query_blocks} * 8;
  const float* const sinks = problem.sinks + blockIdx.x * count;
  float sum = 0;
#pragma unroll 8
  for (std::int64_t i = threadIdx.x; i < count; i += 32) sum += sinks[i];
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
  if (threadIdx.x == 0)
    *problem.args.ds_aux.template at<Element>(blockIdx.x) = static_cast<Element>(-sum);
}

// The gradient of the slope of a head of a sequence: one warp adds the sums of the `kThreads` of
// each block of keys, always in the same order.
template <class Config, int kThreads, class Problem>
__device__ __forceinline__ void finish_slope(const Problem& problem) {
  const int heads = static_cast<int>(problem.args.H), head = static_cast<int>(blockIdx.x) % heads;
  const int sequence = static_cast<int>(blockIdx.x) / heads;
  float sum = 0;
  if (problem.slope_sums != nullptr) {
    const Region keys = keys_of<Config>(problem.args, problem.sequences, sequence);
    const int count = ceil_div(keys.rows, Config::B_c) * kThreads;
#pragma unroll 8
    for (int i = static_cast<int>(threadIdx.x); i < count; i += 32) {
      const std::int64_t block = AnyLengths<Config, Problem>::thread_block_of(
          problem, head / problem.group, keys.first_block + i / kThreads);
      sum +=
          problem
              .slope_sums[(block * problem.group + head % problem.group) * kThreads + i % kThreads];
    }
  }
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
  if (threadIdx.x == 0) *problem.args.dalibi_slopes.template at<float>(sequence, head) = -sum;
}

}  // namespace kernelmint::flash_prefill_backward
