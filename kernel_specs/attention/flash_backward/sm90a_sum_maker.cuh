// The sums D and log-sum-exps of rows, of which the first kernel makes those of the first heads.
#pragma once

#include <cstdint>

#include "attention/flash_backward/prepare.cuh"
#include "attention/flash_backward/sm90a_problem.h"
#include "integers.h"
#include "ptx/atomic.cuh"
#include "ptx/bulk_copy.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/tma.cuh"

namespace kernelmint::flash_backward::sm90a {

// A warp that makes rows' values beside the products: head after head, in the order in which tiles
// need them. It waits for no tile, so that no tile waits for ever. It takes the rows of `kBoxes`
// boxes at a time, whose O and dO come to shared memory: a row of a box for each lane.
template <class Config>
class SumMaker {
  using Problem = sm90a::Problem<typename Config::Args>;
  static constexpr int kBoxes = 4;
  static constexpr int kRows = kBoxes * kRowsOfBox, kBoxBytes = kRowsOfBox * kPanelRowBytes;
  static_assert(Config::d_head == 64 && kRowsOfBox == 32);

 public:
  static constexpr int kBytes = kBoxes * (2 * kBoxBytes + 8) + 128;  // from a multiple of 128 on

  __device__ SumMaker(const Problem& problem, std::uint32_t base)
      : problem_(problem),
        base_((base + 127) / 128 * 128),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  // By one thread, before all others go on.
  __device__ void initialise_barriers() const {
    for (int box = 0; box < kBoxes; ++box) ptx::mbarrier_init(full(box), 1);
  }

  // Until D of all rows of a tile's queries is there; by the thread that copies them.
  template <class Tile>
  __device__ __forceinline__ static void wait_for_sums(const Problem& problem, const Tile& tile) {
    const int kv_head = tile.batch * static_cast<int>(problem.args.Hk) + tile.kv_head;
    if (kv_head < problem.kv_heads_ahead) return;
    ptx::wait_alone_for_counter(next_sums(problem) + 1 + kv_head, problem.group * parts(problem));
    ptx::fence_async_global();
  }

  __device__ void run() const {
    const int heads = static_cast<int>(problem_.args.H);
    if (problem_.kv_heads_ahead == static_cast<int>(problem_.args.B * problem_.args.Hk)) return;
    ptx::wait_for_kernel_ahead();
#pragma unroll 1
    for (int phase = 0;; phase ^= 1) {
      int index = 0;
      if (lane_ == 0) index = static_cast<int>(atomicAdd(next_sums(problem_), 1u));
      index = __shfl_sync(~0u, index, 0);
      const int head = problem_.kv_heads_ahead * problem_.group + index / parts(problem_);
      if (head >= static_cast<int>(problem_.args.B) * heads) return;
      const int first = index % parts(problem_) * kRows;
      if (lane_ == 0)
        for (int box = 0; box < kBoxes; ++box)
          load(box, first + box * kRowsOfBox, head % heads, head / heads);
#pragma unroll 1
      for (int box = 0; box < kBoxes; ++box) {
        ptx::mbarrier_wait(full(box), phase);
        float sum = sum_of_row(box);
        const int query = first + box * kRowsOfBox + lane_;
        if (query >= padded(problem_)) continue;
        const float log_sum =
            log_sum_of_row<Config>(problem_, head / heads, head % heads, query, sum);
        const std::int64_t row = std::int64_t{head} * padded(problem_) + query;
        problem_.deltas[row] = sum;
        problem_.log_sums[row] = log_sum;
      }
      __syncwarp();
      if (lane_ == 0) ptx::add_release(next_sums(problem_) + 1 + head / problem_.group, 1);
    }
  }

 private:
  __device__ __forceinline__ static int padded(const Problem& problem) {
    return problem.query_blocks * Config::B_r;
  }
  __device__ __forceinline__ static int parts(const Problem& problem) {
    return ceil_div(padded(problem), kRows);
  }

  __device__ __forceinline__ void load(int box, int row, int head, int batch) const {
    ptx::mbarrier_arrive_expecting(full(box), 2 * kBoxBytes);
    const auto load = [&](const MappedTensor& tensor, std::uint32_t to) {
      ptx::tma_load_4d(to, tensor.map, full(box),
                       ptx::make_cache_policy<ptx::CachePolicy::kEvictNormal>(), 0, row,
                       head * tensor.head_step, batch * tensor.batch_step);
    };
    load(problem_.o_rows, outputs(box));
    load(problem_.dout_rows, outputs(box) + kBoxBytes);
  }

  // 16 bytes at a time, each lane at another place of its row.
  __device__ __forceinline__ float sum_of_row(int box) const {
    float sum = 0;
#pragma unroll 2
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t at = outputs(box) + lane_ * kPanelRowBytes + (i + lane_) % 8 * 16;
      sum += product<typename Config::dtype>(ptx::load_shared_16(at),
                                             ptx::load_shared_16(at + kBoxBytes));
    }
    return sum;
  }

  __device__ __forceinline__ std::uint32_t outputs(int box) const {
    return base_ + box * 2 * kBoxBytes;
  }
  __device__ __forceinline__ std::uint32_t full(int box) const {
    return base_ + kBoxes * 2 * kBoxBytes + box * 8;
  }

  const Problem& problem_;
  const std::uint32_t base_;
  const int lane_;
};

}  // namespace kernelmint::flash_backward::sm90a
