// The values that a traced configuration writes: every intermediate of every step, as family.yaml's
// `trace:` lists them.
#pragma once

#include <cstdint>

#include "attention/flash_backward/sm90a_problem.h"
#include "attention/sm90a_backward_scores.cuh"
#include "attention/sm90a_backward_shared_memory.cuh"
#include "attention/sm90a_backward_trace.cuh"
#include "flash_backward/trace.h"
#include "ptx/math.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/special_registers.cuh"
#include "register_tile.cuh"

namespace kernelmint::flash_backward::sm90a {

using namespace attention_backward::sm90a;

template <class Config>
class Trace : public NoTrace {
 public:
  template <class Problem>
  __device__ __forceinline__ Trace(const Problem&, int, int) {}
};

// A warpgroup's part of a step's record. Each tensor is written where it is complete: S before the
// exponentials; P and dP when dP is there; dS before dV ends; dQ before it leaves; dK and dV at the
// end of the step; operands where few registers are taken. The record is found anew each time:
// between the hooks all registers are taken.
template <Traced Config>
class Trace<Config> {
  using Element = typename Config::dtype;
  using Problem = sm90a::Problem<typename Config::Args>;
  using Record = TraceRecord<Config>;
  using Lane = ScoresOfLane<Config>;
  static constexpr int kThreads = 128 * Config::n_warpgroups;

 public:
  __device__ __forceinline__ Trace(const Problem& problem, int step, int warpgroup)
      : problem_(problem), step_(step), warpgroup_(warpgroup) {}

  // The operands by their addresses, before they are given back: Q with its log-sum-exps, and K; dO
  // with D, and V.
  __device__ __forceinline__ void queries(std::uint32_t queries, std::uint32_t log_sums,
                                          std::uint32_t keys) const {
    Record* const record = find_record();
    if (record == nullptr) return;
    copy(record->Q, queries);
    copy<kColumnsOfKeyPanel<Config>>(record->K, keys);
    for (int row = thread(); row < Config::B_r; row += kThreads)
      record->L[row] = load(log_sums + row * 4) * 0.6931471805599453f;
  }
  __device__ __forceinline__ void gradients(std::uint32_t gradients, std::uint32_t deltas,
                                            std::uint32_t values) const {
    Record* const record = find_record();
    if (record == nullptr) return;
    copy(record->dO, gradients);
    copy(record->V, values);
    for (int row = thread(); row < Config::B_r; row += kThreads)
      record->D[row] = load(deltas + row * 4);
  }

  template <int kCount>
  __device__ __forceinline__ void scores(const float (&scores)[kCount]) const {
    Record* const record = find_record();
    if (record == nullptr) return;
    unroll<kCount>([&](int e) { score(record->S, e) = scores[e]; });
  }

  template <int kCount>
  __device__ __forceinline__ void probabilities(const float (&probabilities)[kCount],
                                                const float (&products)[kCount]) const {
    Record* const record = find_record();
    if (record == nullptr) return;
    unroll<kCount>([&](int e) {
      score(record->P, e) = rounded(probabilities[e]);
      score(record->dP, e) = products[e];
    });
  }

  template <int kCount>
  __device__ __forceinline__ void score_gradients(const float (&gradients)[kCount]) const {
    Record* const record = find_record();
    if (record == nullptr) return;
    unroll<kCount>([&](int e) { score(record->dS, e) = rounded(gradients[e]); });
  }

  // The warpgroup's part of dQ, transposed: 64 columns by queries from the `first_query` on.
  template <int kCount>
  __device__ __forceinline__ void query_gradients(const float (&part)[kCount], int first_query,
                                                  int first_column) const {
    Record* const record = find_record();
    if (record == nullptr) return;
    for_each(part, [&](int row, int column, float value) {
      if (first_column + row < Config::d_head)
        record->dQ[first_query + column][first_column + row] = value;
    });
  }
  // Columns of all queries from the `first_column` on, if the head is wide.
  template <int kCount>
  __device__ __forceinline__ void query_gradients(const float (&part)[kCount],
                                                  int first_column) const {
    Record* const record = find_record();
    if (record == nullptr) return;
    for_each(part, [&](int row, int column, float value) {
      record->dQ[row][first_column + column] = value;
    });
  }

  // Sums of the warpgroup's 64 keys.
  template <int kCount>
  __device__ __forceinline__ void key_gradients(const float (&dk)[kCount],
                                                const float (&dv)[kCount]) const {
    Record* const record = find_record();
    if (record == nullptr) return;
    write(record->dK, dk);
    write(record->dV, dv);
  }
  // Panels of columns, transposed, if the head is wide: of all keys, or of the warpgroup's.
  template <int kPanels, int kCount>
  __device__ __forceinline__ void key_gradients(const float (&dk)[kPanels][kCount],
                                                const float (&dv)[kPanels][kCount]) const {
    Record* const record = find_record();
    if (record == nullptr) return;
    const int first_key = Config::by_keys ? warpgroup_ * kKeysOfWarpgroup<Config> : 0;
    unroll<kPanels>([&](int panel) {
      const int first_column = ((Config::by_keys ? 0 : warpgroup_ * kPanels) + panel) * 64;
      for_each(dk[panel], [&](int row, int column, float value) {
        record->dK[first_key + column][first_column + row] = value;
      });
      for_each(dv[panel], [&](int row, int column, float value) {
        record->dV[first_key + column][first_column + row] = value;
      });
    });
  }

 private:
  // Null in a call without a trace.
  __device__ Record* find_record() const {
    if (problem_.args.trace.data == nullptr) return nullptr;
    const Tile tile = tile_of<Config>(problem_, ptx::reread_block_index());
    return problem_.args.trace.template at<Record>(
        tile.batch, tile.kv_head * problem_.group + step_ % problem_.group,
        nth_block<Config>(problem_, tile, step_ / problem_.group), tile.key_block);
  }

  // The place of the e-th register of scores.
  __device__ __forceinline__ float& score(float (&to)[Config::B_r][Config::B_c], int e) const {
    const int first_key = kIsWide<Config> ? 0 : warpgroup_ * 64;
    return to[Lane::first_query() + Lane::query(e)][first_key + Lane::first_key() + Lane::key(e)];
  }

  // f(row, column, value) for each of the lane's accumulators of 64 rows.
  template <int kCount, class F>
  __device__ __forceinline__ static void for_each(const float (&values)[kCount], const F& f) {
    using Rows = RegisterTile<16, 2 * kCount>;
    const int lane = thread() % 32, first_row = thread() % 128 / 32 * 16 + Rows::first_row(lane);
    unroll<kCount>([&](int e) {
      f(first_row + e / 2 % 2 * 8, Rows::first_column(lane) + e / 4 * 8 + e % 2, values[e]);
    });
  }

  template <int kCount>
  __device__ __forceinline__ void write(float (&to)[Config::B_c][Config::d_head],
                                        const float (&values)[kCount]) const {
    for_each(values,
             [&](int row, int column, float value) { to[warpgroup_ * 64 + row][column] = value; });
  }

  // Rows in panels of shared memory, which are swizzled; each thread has a share.
  template <int kColumns = 64, int kRows>
  __device__ static void copy(float (&to)[kRows][Config::d_head], std::uint32_t from) {
    constexpr int kPairs = Config::d_head / 2;
#pragma unroll 1
    for (int i = thread(); i < kRows * kPairs; i += kThreads) {
      const int row = i / kPairs, column = i % kPairs * 2;
      const int panel_row = column / kColumns * kRows + row;
      const int chunk = column % kColumns / 8 ^ row * (kColumns * 2) / 128 % (kColumns / 8);
      const float2 pair = ptx::unpack<Element>(
          ptx::load_shared_4(from + panel_row * (kColumns * 2) + chunk * 16 + column % 8 * 2));
      to[row][column] = pair.x;
      to[row][column + 1] = pair.y;
    }
  }

  __device__ __forceinline__ static float load(std::uint32_t address) {
    return __uint_as_float(ptx::load_shared_4(address));
  }
  __device__ __forceinline__ static float rounded(float value) {
    return ptx::unpack<Element>(ptx::pack<Element>(value, value)).x;
  }
  // The thread's number among the computing threads.
  __device__ static int thread() { return static_cast<int>(ptx::reread_thread_index()) - 128; }

  const Problem& problem_;
  const int step_, warpgroup_;
};

}  // namespace kernelmint::flash_backward::sm90a
