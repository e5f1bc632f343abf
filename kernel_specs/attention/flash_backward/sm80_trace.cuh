// The values that a traced configuration writes: every intermediate of every step, as family.yaml's
// `trace:` lists them.
#pragma once

#include <cstdint>

#include "attention/flash_backward/problem.h"
#include "attention/sm80_tiles.cuh"
#include "flash_backward/trace.h"
#include "ptx/math.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/special_registers.cuh"
#include "register_tile.cuh"

namespace kernelmint::flash_backward::sm80 {

// One step of one block of threads, whose records have the shapes of a head's queries and keys.
template <class Config>
class Trace {
  using Element = typename Config::dtype;
  using Layout = attention::sm80::SharedLayout<Config::d_head, true>;

 public:
  __device__ Trace(const Problem<typename Config::Args>& problem, const Tile& tile, int head,
                   int block)
      : record_(nullptr) {
    if (problem.args.trace.data != nullptr)
      record_ = problem.args.trace.template at<Record>(tile.batch, head, block, tile.key_block);
  }

  // S of a warp: keys from the `first_key` on by queries from the `first_query` on.
  template <class Scores>
  __device__ __forceinline__ void scores(const Scores& scores, int first_key,
                                         int first_query) const {
    write<false>(&Record::S, scores, first_key, first_query);
  }
  template <class Scores>
  __device__ __forceinline__ void probabilities(const Scores& probabilities, const Scores& products,
                                                int first_key, int first_query) const {
    write<true>(&Record::P, probabilities, first_key, first_query);
    write<false>(&Record::dP, products, first_key, first_query);
  }
  template <class Scores>
  __device__ __forceinline__ void score_gradients(const Scores& gradients, int first_key,
                                                  int first_query) const {
    write<true>(&Record::dS, gradients, first_key, first_query);
  }

  // The operands by their addresses, before they are given back, by all threads.
  __device__ void queries(std::uint32_t queries, std::uint32_t log_sums, std::uint32_t keys) const {
    if (record_ == nullptr) return;
    copy(record_->Q, queries);
    copy(record_->K, keys);
    copy(record_->L, log_sums, 0.6931471805599453f);
  }
  __device__ void gradients(std::uint32_t gradients, std::uint32_t deltas,
                            std::uint32_t values) const {
    if (record_ == nullptr) return;
    copy(record_->dO, gradients);
    copy(record_->V, values);
    copy(record_->D, deltas, 1);
  }

  // A warp's tiles of the sums of its keys, and its tile of dQ.
  template <class Gradients>
  __device__ __forceinline__ void key_gradients(const Gradients& dk, const Gradients& dv,
                                                int first_key, int first_column) const {
    for_each(dk, [&](int key, int column, float value) {
      record_->dK[first_key + key][first_column + column] = value;
    });
    for_each(dv, [&](int key, int column, float value) {
      record_->dV[first_key + key][first_column + column] = value;
    });
  }
  template <class Gradients>
  __device__ __forceinline__ void query_gradients(const Gradients& dq, int first_query,
                                                  int first_column) const {
    for_each(dq, [&](int query, int column, float value) {
      record_->dQ[first_query + query][first_column + column] = value;
    });
  }

 private:
  using Record = TraceRecord<Config>;

  // With kRounded, scores as they go into the next product.
  template <bool kRounded, class Scores>
  __device__ __forceinline__ void write(float (Record::*tensor)[Config::B_r][Config::B_c],
                                        const Scores& scores, int first_key,
                                        int first_query) const {
    for_each(scores, [&](int key, int query, float value) {
      if (kRounded) value = ptx::unpack<Element>(ptx::pack<Element>(value, value)).x;
      (record_->*tensor)[first_query + query][first_key + key] = value;
    });
  }

  template <int kRows>
  __device__ static void copy(float (&to)[kRows][Config::d_head], std::uint32_t tile) {
#pragma unroll 1
    for (int i = thread(); i < kRows * Config::d_head / 2; i += Config::threads) {
      const int row = 2 * i / Config::d_head, column = 2 * i % Config::d_head;
      const float2 pair = ptx::unpack<Element>(
          ptx::load_shared_4(tile + Layout::offset(row, column / 8) + column % 8 * 2));
      to[row][column] = pair.x;
      to[row][column + 1] = pair.y;
    }
  }
  __device__ static void copy(float (&to)[Config::B_r], std::uint32_t rows, float factor) {
    for (int i = thread(); i < Config::B_r; i += Config::threads)
      to[i] = __uint_as_float(ptx::load_shared_4(rows + i * 4)) * factor;
  }

  // f(row, column, value) for each of the lane's values.
  template <class Values, class F>
  __device__ __forceinline__ void for_each(const Values& values, const F& f) const {
    if (record_ == nullptr) return;
    const int lane = thread() % 32;
    unroll<Values::kLaneRows>([&](int row) {
      unroll<Values::kLaneColumns>([&](int column) {
        f(Values::first_row(lane) + Values::row_of(row),
          Values::first_column(lane) + Values::column_of(column), values(row, column));
      });
    });
  }

  __device__ static int thread() { return static_cast<int>(ptx::reread_thread_index()); }

  Record* record_;
};

}  // namespace kernelmint::flash_backward::sm80
