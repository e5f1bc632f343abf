// The host's part before a call's first kernel: what kernels need to know of it, and scratch
// memory.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention/prefill_backward_problem.h"
#include "attention/softcap.h"
#include "cuda_launch.cuh"

namespace kernelmint::flash_prefill_backward {

template <class Args>
bool has_queries(const Args& args) {
  return args.Nq * args.H * args.Tq > 0;
}
template <class Args>
bool has_keys(const Args& args) {
  return args.Nk * args.Hk * args.Tk > 0;
}

struct MainKernel {
  int resident_blocks;  // thread blocks that a multiprocessor has at one time
  bool stores_first;    // the block of keys that comes first stores dQ
};

template <class Config, class Problem>
Problem describe(const typename Config::Args& args, const LaunchContext& context,
                 const MainKernel& kernel) {
  const bool packed_q = args.cu_seqlens_q.data != nullptr;
  const std::int64_t sequences = packed_q ? args.Cq - 1 : args.Nq;
  Problem problem{};
  problem.args = args;
  problem.query_blocks = static_cast<int>(most_blocks<Config::B_r>(packed_q, args.Tq, sequences));
  problem.key_blocks = static_cast<int>(
      most_blocks<Config::B_c>(args.cu_seqlens_k.data != nullptr, args.Tk, sequences));
  problem.group = static_cast<int>(args.H / args.Hk);
  problem.scale_log2 = args.softmax_scale * kLog2E;
  problem.sequences = static_cast<int>(sequences);
  problem.cap = attention::usable_cap(args.softcap);
  // No score is so large or so small that it would see another cap.
  const float unit = problem.cap > 0 ? std::clamp(problem.cap, 0x1p-60f, 0x1p100f) : 1;
  problem.to_score = args.softmax_scale / unit;
  problem.to_log2 = unit * kLog2E;
  problem.from_log2 = 1 / problem.to_log2;
  const bool is_causal = args.window_right >= 0, is_window = is_causal && args.window_left >= 0;
  const bool is_short = problem.key_blocks <= 32 * sequences;  // on average
  const bool is_open = args.window_left < 0;                   // the last queries see all keys
  problem.stores_first = Config::deterministic || (kernel.stores_first && (is_window || is_open));
  problem.one_counter = problem.stores_first && !Config::deterministic && is_open;
  problem.from_first = is_causal && problem.stores_first && !problem.one_counter &&
                       (is_window || problem.group == 1);
  problem.heads_first =
      is_window || !is_causal || (!Config::deterministic && !is_short && !problem.one_counter);
  // Heads whose tiles are at work at one time: their Q, dO and dQ stay in L2.
  const std::int64_t blocks = std::max(problem.key_blocks, 1);
  const std::int64_t places = context.facts.sm_count * kernel.resident_blocks;
  problem.section_heads = static_cast<int>(std::clamp(
      (places + blocks / 2) / blocks, std::int64_t{1}, std::min<std::int64_t>(8, args.Hk)));
  return problem;
}

// Scratch memory of a call that has queries: dQ with so many columns, so many counters of each
// block of dQ, so many others and so many words, and the sums of so many threads for the slopes'
// gradient.
template <class Config, class Problem>
LaunchResult allocate(Problem& problem, const LaunchContext& context, int columns, int counters,
                      int threads, std::int64_t others = 0, std::int64_t words = 0) {
  const std::int64_t blocks = problem.args.H * problem.query_blocks, rows = blocks * Config::B_r;
  const std::int64_t slope_sums = attention::GivesSlopes<typename Config::Args>
                                      ? problem.args.H * problem.key_blocks * threads
                                      : 0;
  problem.counter_count = counters * blocks + others;
  const Allocation scratch = context.allocate(
      (rows * (columns + 2) + 8 * blocks + problem.counter_count + words + slope_sums) *
      sizeof(float));
  if (scratch.error != nullptr) return {scratch.error};
  problem.dq = static_cast<float*>(scratch.data);
  problem.log_sums = problem.dq + rows * columns;
  problem.deltas = problem.log_sums + rows;
  problem.sinks = problem.deltas + rows;
  problem.counters = reinterpret_cast<unsigned*>(problem.sinks + 8 * blocks);
  if constexpr (attention::GivesSlopes<typename Config::Args>) {
    problem.slope_sums = reinterpret_cast<float*>(problem.counters + problem.counter_count + words);
    problem.slope_sum_count = slope_sums;
  }
  return {};
}

// The blocks of keys that a block of queries sees, on average.
template <class Config, class Problem>
std::int64_t blocks_seen(const Problem& problem) {
  const auto& args = problem.args;
  const std::int64_t blocks = problem.key_blocks / problem.sequences;
  if (args.window_right < 0) return blocks;
  if (args.window_left < 0) return blocks / 2;
  return std::min(blocks, (std::int64_t{args.window_left} + args.window_right) / Config::B_c + 1);
}

template <class Problem>
bool changes_scores(const Problem& problem) {
  return problem.cap > 0 || problem.args.alibi_slopes.data != nullptr;
}

// Runs the main kernel that the call needs: run<true>() if it changes scores.
template <class Config, class Problem, class Run>
LaunchResult run_main(const Problem& problem, const Run& run) {
  if constexpr (attention::GivesSlopes<typename Config::Args>)
    return run.template operator()<true>();
  else if (changes_scores(problem))
    return run.template operator()<true>();
  else
    return run.template operator()<false>();
}

}  // namespace kernelmint::flash_prefill_backward
