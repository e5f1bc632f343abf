// The kernels before and after the main one: what belongs to each row of scores, and dQ as a
// tensor.
#pragma once

#include <cstdint>

#include "flash_backward/sm90a_problem.h"
#include "flash_backward/sm90a_shared_memory.cuh"
#include "integers.h"
#include "ptx/dependent_launch.cuh"
#include "ptx/math.cuh"
#include "register_tile.cuh"

namespace kernelmint::flash_backward {

// D, the sum of dO O, and the log-sum-exp as a power of two, of each query; and zeros: the counters
// of stored blocks, and dQ of the last queries. A row without keys, or past the last query, has an
// infinite log-sum-exp, so that its probabilities are 0. As many neighbouring lanes share a row as
// it has 16 bytes.
template <class Config>
__global__ void __launch_bounds__(256)
    prepare_rows(const __grid_constant__ sm90a::Problem<typename Config::Args> problem) {
  using Element = typename Config::dtype;
  constexpr int kLanes = Config::d_head / 8, kRowsOfBlock = 64;
  constexpr int kRowsAtOnce = 256 / kLanes, kUnrolled = kRowsOfBlock / kRowsAtOnce;
  ptx::let_next_kernel_start();
  const auto& args = problem.args;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes;
  const int heads = static_cast<int>(args.H), padded = problem.query_blocks * Config::B_r;
  // Heads of one query lie side by side: so do thread blocks.
  const int blocks = ceil_div(padded, kRowsOfBlock);
  const int head = static_cast<int>(blockIdx.x) % heads,
            rest = static_cast<int>(blockIdx.x) / heads;
  const int batch = rest / blocks, first = rest % blocks * kRowsOfBlock + thread / kLanes;
  const Element* const o = args.o.template as<const Element>() + batch * args.o.stride[0] +
                           head * args.o.stride[2] + lane * 8;
  const Element* const dout = args.dout.template as<const Element>() + batch * args.dout.stride[0] +
                              head * args.dout.stride[2] + lane * 8;
  uint4 outputs[kUnrolled], gradients[kUnrolled];
  unroll<kUnrolled>([&](int i) {
    const std::int64_t query = first + i * kRowsAtOnce;
    outputs[i] = gradients[i] = uint4{0, 0, 0, 0};
    if (query < args.Sq) {
      outputs[i] = __ldcs(reinterpret_cast<const uint4*>(o + query * args.o.stride[1]));
      gradients[i] = __ldcg(reinterpret_cast<const uint4*>(dout + query * args.dout.stride[1]));
    }
  });
  const std::int64_t row = (std::int64_t{batch} * heads + head) * padded;
  if (first < kRowsOfBlock) {  // one thread block of a head
    const int counters = Config::deterministic ? problem.query_blocks : 1;
    for (int i = thread; i < counters; i += 256)
      problem.counters[(batch * heads + head) * counters + i] = 0;
    auto* const last =
        reinterpret_cast<float4*>(problem.dq + (row + padded - Config::B_r) * Config::d_head);
    for (int i = thread; i < Config::B_r * Config::d_head / 4; i += 256)
      last[i] = float4{0, 0, 0, 0};
  }
  unroll<kUnrolled>([&](int i) {
    float sum = 0;
    const auto add = [&](std::uint32_t x, std::uint32_t y) {
      const float2 a = ptx::unpack<Element>(x), b = ptx::unpack<Element>(y);
      sum += a.x * b.x + a.y * b.y;
    };
    add(outputs[i].x, gradients[i].x), add(outputs[i].y, gradients[i].y);
    add(outputs[i].z, gradients[i].z), add(outputs[i].w, gradients[i].w);
    for (int distance = kLanes / 2; distance > 0; distance /= 2)
      sum += __shfl_xor_sync(~0u, sum, distance);
    const int query = first + i * kRowsAtOnce;
    if (lane != 0 || query >= padded) return;
    float log_sum = INFINITY;
    if (query < args.Sq) {
      const float* const lse = args.lse.template as<const float>() + batch * args.lse.stride[0] +
                               head * args.lse.stride[1];
      log_sum = lse[query * args.lse.stride[2]];
      if (log_sum == -INFINITY) log_sum = INFINITY, sum = 0;
    }
    problem.deltas[row + query] = sum;
    problem.log_sums[row + query] = log_sum * 1.4426950408889634f;
  });
}

// dQ, scaled and rounded, of a block of queries, from the order of the registers.
template <class Config>
__global__ void __launch_bounds__(256)
    finish_queries(const __grid_constant__ sm90a::Problem<typename Config::Args> problem) {
  using Element = typename Config::dtype;
  // A warpgroup's part is 64 columns by its queries, 8 of them in a chunk: four floats a thread.
  constexpr int kPartQueries = sm90a::SharedMemory<Config>::kPartQueries;
  constexpr int kChunks = kPartQueries / 8, kPairs = (kChunks + 1) / 2;
  ptx::wait_for_kernel_ahead();
  const auto& args = problem.args;
  const int block = static_cast<int>(blockIdx.x) % problem.query_blocks;
  const int heads = static_cast<int>(blockIdx.x) / problem.query_blocks;
  const int head = heads % static_cast<int>(args.H), batch = heads / static_cast<int>(args.H);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, part = threadIdx.x / 128;
  const bool sees_keys = args.Sk > 0 && block >= sm90a::first_query_block<Config>(problem, 0);
  const float4* const from =
      reinterpret_cast<const float4*>(problem.dq) +
      (std::int64_t{sm90a::block_index(problem, batch, head, block)} * 2 + part) *
          (kPartQueries * 16) +
      warp * 32 + lane;
  float4 values[2 * kPairs];
  unroll<2 * kPairs>([&](int i) {
    values[i] = sees_keys && i < kChunks ? __ldcg(from + i * 128) : float4{0, 0, 0, 0};
  });
  const int first_query =
      block * Config::B_r + (kPartQueries < Config::B_r ? part * kPartQueries : 0);
  const int first_column = (kPartQueries < Config::B_r ? 0 : part * 64) + warp * 16;
  Element* const dq = args.dq.template as<Element>() + batch * args.dq.stride[0] +
                      head * args.dq.stride[2] + first_column;
  unroll<kPairs>([&](int pair) {
    // Eight lanes have one column each of the same two queries, and one eight columns further, in
    // two chunks. They exchange values until each has eight columns of one query.
    const float4 &a = values[2 * pair], &b = values[2 * pair + 1];
    float own[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    unroll<3>([&](int level) {
      const int distance = 1 << level;
      const bool is_upper = lane / 4 & distance;
      unroll<4>([&](int i) {
        const int low = (i >> level << (level + 1)) | (i & (distance - 1)), high = low + distance;
        const float received = __shfl_xor_sync(~0u, is_upper ? own[low] : own[high], distance * 4);
        if (is_upper)
          own[low] = received;
        else
          own[high] = received;
      });
    });
    // The lane has the values that were own[lane / 4]: of a chunk, an eight of columns, a query.
    const int chunk = 2 * pair + lane / 16, eight = lane / 8 % 2;
    const std::int64_t query = first_query + chunk * 8 + lane % 4 * 2 + lane / 4 % 2;
    if (query >= args.Sq || chunk >= kChunks) return;
    std::uint32_t words[4];
    unroll<4>([&](int i) {
      words[i] = ptx::pack<Element>(own[2 * i] * args.scale, own[2 * i + 1] * args.scale);
    });
    *reinterpret_cast<uint4*>(dq + query * args.dq.stride[1] + eight * 8) =
        uint4{words[0], words[1], words[2], words[3]};
  });
}

}  // namespace kernelmint::flash_backward
