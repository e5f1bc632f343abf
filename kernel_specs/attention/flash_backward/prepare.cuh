// The work before the main kernel of any target: scratch memory, and the kernel that makes the
// values of each row of scores.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "attention/backward_product.cuh"
#include "attention/backward_sections.cuh"
#include "attention/flash_backward/problem.h"
#include "cuda_launch.cuh"
#include "integers.h"
#include "ptx/dependent_launch.cuh"
#include "register_tile.cuh"

namespace kernelmint::flash_backward {

// The rows of a thread block. One that makes no D has all rows of a head.
inline constexpr int kRowsOfBlock = 64;

// A row's log-sum-exp as a power of two. A row past the last query, or without keys, has an
// infinite one, so that its probabilities are 0. D of a row without keys is 0 as well.
template <class Config>
__device__ __forceinline__ float log_sum_of_row(const Problem<typename Config::Args>& problem,
                                                int batch, int head, int query, float& sum) {
  const auto& args = problem.args;
  float log_sum = INFINITY;
  if (query < args.Sq) {
    const float* const lse = args.lse.template as<const float>() + batch * args.lse.stride[0] +
                             head * args.lse.stride[1];
    log_sum = lse[query * args.lse.stride[2]];
    if (log_sum == -INFINITY) log_sum = INFINITY, sum = 0;
  }
  return log_sum * 1.4426950408889634f;
}

// D, the sum of dO O, and the log-sum-exp of each query; and the zeros that the target asks for. As
// many neighbouring lanes share a row as it has 16 bytes, or the next power of two.
template <class Config>
__global__ void __launch_bounds__(256)
    prepare_rows(const __grid_constant__ Problem<typename Config::Args> problem) {
  using Element = typename Config::dtype;
  constexpr int kChunks = Config::d_head / 8;
  constexpr int kLanes = kChunks <= 8 ? 8 : kChunks <= 16 ? 16 : 32;
  constexpr int kRowsAtOnce = 256 / kLanes, kUnrolled = kRowsOfBlock / kRowsAtOnce;
  ptx::let_next_kernel_start();
  const auto& args = problem.args;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes;
  const int heads = static_cast<int>(args.H), padded = problem.query_blocks * Config::B_r;
  // Heads of one query lie side by side: so do thread blocks.
  const int blocks = ceil_div(padded, kRowsOfBlock);
  int head = static_cast<int>(blockIdx.x) % heads, rest = static_cast<int>(blockIdx.x) / heads;
  int batch = rest / blocks, first_row = rest % blocks * kRowsOfBlock;
  int most_rows = kRowsOfBlock;
  bool sums = true;
  if constexpr (kLeavesSums<Config>) {
    const int ahead = problem.kv_heads_ahead * problem.group;
    const int other = static_cast<int>(blockIdx.x) - ahead * blocks;
    sums = other < 0;
    rest = sums ? static_cast<int>(blockIdx.x) % ahead : ahead + other;
    head = rest % heads, batch = rest / heads;
    most_rows = sums ? kRowsOfBlock : padded;
    first_row = sums ? static_cast<int>(blockIdx.x) / ahead * kRowsOfBlock : 0;
  }
  const int first = first_row + thread / kLanes;
  const Element* const o = args.o.template as<const Element>() + batch * args.o.stride[0] +
                           head * args.o.stride[2] + lane * 8;
  const Element* const dout = args.dout.template as<const Element>() + batch * args.dout.stride[0] +
                              head * args.dout.stride[2] + lane * 8;
  uint4 outputs[kUnrolled], gradients[kUnrolled];
  unroll<kUnrolled>([&](int i) {
    const std::int64_t query = first + i * kRowsAtOnce;
    outputs[i] = gradients[i] = uint4{0, 0, 0, 0};
    if (query < args.Sq && lane < kChunks && sums) {
      outputs[i] = __ldcs(reinterpret_cast<const uint4*>(o + query * args.o.stride[1]));
      gradients[i] = __ldcg(reinterpret_cast<const uint4*>(dout + query * args.dout.stride[1]));
    }
  });
  const std::int64_t row = (std::int64_t{batch} * heads + head) * padded;
  if constexpr (kCountsTiles<Config>)
    if (blockIdx.x == 0 && thread == 0) {
      *problem.next_tile = 0;
      if constexpr (kLeavesSums<Config>) *next_sums(problem) = 0;
    }
  if (first_row == 0) {
    unsigned* const counters =
        problem.counters + (std::int64_t{batch} * heads + head) * problem.counters_of_head;
    for (int i = thread; i < problem.counters_of_head; i += 256) counters[i] = 0;
    if constexpr (kCountsTiles<Config>)
      if (thread == 0 && head % problem.group == 0) {
        const std::int64_t kv_head = batch * args.Hk + head / problem.group;
        problem.tiles_done[kv_head] = 0;
        if constexpr (kLeavesSums<Config>) next_sums(problem)[1 + kv_head] = 0;
      }
  }
  auto* const dq = reinterpret_cast<float4*>(problem.dq + (row + first_row) * Config::padded_head);
  const int rows = min(most_rows, padded - first_row);
  for (int i = max(problem.first_zero - first_row, 0) * (Config::padded_head / 4) + thread;
       i < rows * (Config::padded_head / 4); i += 256)
    dq[i] = float4{0, 0, 0, 0};
  if (!sums) return;
  unroll<kUnrolled>([&](int i) {
    float sum = attention_backward::product<Element>(outputs[i], gradients[i]);
    for (int distance = kLanes / 2; distance > 0; distance /= 2)
      sum += __shfl_xor_sync(~0u, sum, distance);
    const int query = first + i * kRowsAtOnce;
    if (lane != 0 || query >= padded) return;
    const float log_sum = log_sum_of_row<Config>(problem, batch, head, query, sum);
    problem.deltas[row + query] = sum;
    problem.log_sums[row + query] = log_sum;
  });
}

// The heads of a section whose second lots of tiles go from the diagonal on; 0 if none should. If
// all tiles go from the last queries on, blocks of keys that begin at different times are at
// different queries. It counts where Q, dO and dQ of two sections are more than L2, which has 380
// KB for each multiprocessor: where heads share keys, for one. Of sequences of few blocks, tiles
// are too different.
template <class Config, class Args>
std::int64_t heads_there_and_back(const Problem<Args>& problem, std::int64_t heads,
                                  std::int64_t places) {
  constexpr std::int64_t kBytesOfRow = Config::d_head * (2 + 2 + 4);
  const std::int64_t rows = std::int64_t{problem.query_blocks} * Config::B_r;
  if (problem.key_blocks < places / 8 ||
      2 * problem.section_heads * problem.group * rows * kBytesOfRow < places * 380'000)
    return 0;
  // The least sections of two lots or more that leave few multiprocessors without work at the end.
  const std::int64_t lots = 2 * places, share = problem.key_blocks + 1;  // a head's, of these
  const auto time = [&](std::int64_t n) { return n == 0 ? 0 : std::max(lots, n * share); };
  for (std::int64_t n = ceil_div(lots * 19 / 20, share); n < heads; ++n)
    if ((heads / n * time(n) + time(heads % n)) * 100 <= time(heads) * 103) return n;
  return heads;
}

// In turn: so many key/value heads at a time that, of each, at most half as many blocks of keys are
// at work as there are steps that they can be at. More would wait for each other.
template <class Args>
int heads_for_turns(const Problem<Args>& problem, int places) {
  const int least = ceil_div(2 * places, std::max(problem.query_blocks * problem.group, 1));
  return static_cast<int>(std::min<std::int64_t>(least, problem.args.B * problem.args.Hk));
}

// A call, of whose main kernel a multiprocessor has so many thread blocks at one time.
template <class Config>
Problem<typename Config::Args> describe(const typename Config::Args& args,
                                        const LaunchContext& context, int resident_blocks) {
  Problem<typename Config::Args> problem{
      .args = args,
      .query_blocks = static_cast<int>(ceil_div(args.Sq, std::int64_t{Config::B_r})),
      .key_blocks = static_cast<int>(ceil_div(args.Sk, std::int64_t{Config::B_c})),
      .group = static_cast<int>(args.H / args.Hk),
      .offset = static_cast<int>(args.Sk - args.Sq),
      .scale_log2 = args.scale * 1.4426950408889634f};
  // The number of heads whose tiles are at work at one time: their Q, dO and dQ stay in L2. More
  // than kMostHeads, of short sequences, are slower: 0.98 at 1,024 tokens.
  constexpr std::int64_t kMostHeads = 8;
  const std::int64_t key_blocks = std::max(problem.key_blocks, 1), heads = args.B * args.Hk;
  const std::int64_t places = context.facts.sm_count * resident_blocks;
  const std::int64_t at_work = (places + key_blocks / 2) / key_blocks;
  problem.section_heads =
      static_cast<int>(std::max(std::min({at_work, kMostHeads, heads}), std::int64_t{1}));
  problem.lot = std::numeric_limits<int>::max();
  if (Config::deterministic && problem.group == 1) {
    using namespace attention_backward;
    problem.section_heads = heads_in_turn<Config>(static_cast<int>(places),
                                                  static_cast<int>(key_blocks), Config::causal);
    problem.last_section = last_section_in_turn(static_cast<int>(heads), problem.section_heads);
    problem.last_goes_back =
        !Config::trace && last_section_goes_back(static_cast<int>(places), problem.key_blocks);
    return problem;
  }
  if (kThereAndBack<Config> && !Config::trace && !goes_from_diagonal<Config>(problem))
    if (const std::int64_t most = heads_there_and_back<Config>(problem, heads, places)) {
      problem.section_heads = static_cast<int>(most);
      problem.last_section = static_cast<int>(ceil_div(heads, most) - 1);
      problem.lot = static_cast<int>(places);
      return problem;
    }
  // Under the mask tiles take, on average, half of the time of the longest ones. Unless long tiles
  // come last, the last two sections are one, so that no long tile begins late.
  const std::int64_t sections = ceil_div(heads, std::int64_t{problem.section_heads});
  const bool joins = Config::causal && !goes_from_diagonal<Config>(problem) && at_work < kMostHeads;
  problem.last_section = static_cast<int>(std::max(sections - (joins ? 2 : 1), std::int64_t{0}));
  return problem;
}

// Launches the kernel that goes ahead of the main one, on scratch memory; there are queries.
template <class Config>
LaunchResult prepare(Problem<typename Config::Args>& problem, const LaunchContext& context) {
  const std::int64_t heads = problem.args.B * problem.args.H;
  const std::int64_t padded = std::int64_t{problem.query_blocks} * Config::B_r;
  const std::int64_t rows = heads * padded;
  const std::int64_t of_heads = heads * problem.counters_of_head;
  const std::int64_t counters =
      of_heads +
      (1 + kLeavesSums<Config>)*(kCountsTiles<Config> ? 1 + problem.args.B * problem.args.Hk : 0);
  const Allocation scratch =
      context.allocate((rows * (Config::padded_head + 2) + counters) * sizeof(float));
  if (scratch.error != nullptr) return {scratch.error};
  problem.dq = static_cast<float*>(scratch.data);
  problem.log_sums = problem.dq + rows * Config::padded_head;
  problem.deltas = problem.log_sums + rows;
  problem.counters = reinterpret_cast<unsigned*>(problem.deltas + rows);
  if constexpr (kCountsTiles<Config>) {
    problem.next_tile = problem.counters + of_heads;
    problem.tiles_done = problem.next_tile + 1;
  }
  const std::int64_t with_sums =
      kLeavesSums<Config> ? problem.kv_heads_ahead * problem.group : heads;
  return launch_cuda<&prepare_rows<Config>>(
      {.grid = {ceil_div(padded, std::int64_t{kRowsOfBlock}) * with_sums + heads - with_sums},
       .block = {256}},
      context, problem);
}

}  // namespace kernelmint::flash_backward
