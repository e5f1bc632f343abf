// The values that a traced configuration writes: every intermediate of every block of keys, as
// family.yaml's `trace:` lists them.
#pragma once

#include <cstdint>

#include "attention/flash_forward/sm90a_announced.cuh"
#include "attention/flash_forward/sm90a_tile_scheduler.cuh"
#include "attention/sm90a_products.cuh"
#include "attention/sm90a_warpgroup.cuh"
#include "attention/softmax.cuh"
#include "flash_forward/trace.h"
#include "ptx/math.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/special_registers.cuh"
#include "register_tile.cuh"

namespace kernelmint::flash_forward::sm90a {

using namespace attention;

template <class Config>
class Trace : public NoTrace {
 public:
  explicit __device__ Trace(const typename Config::Args&) {}
};

// A warpgroup's part of the records: its slab of the rows, and a share of K and V.
//
// Each tensor is written where it is complete: Q, K and S before the softmax, its statistics after
// it, and P, V and O a block later, when the second product has read and written them. Rows past
// the last query see no key, as in the simulation; rows of a warpgroup that passes over a block see
// none either.
template <Traced Config>
class Trace<Config> {
  using Args = typename Config::Args;
  using Element = typename Config::dtype;
  using Shared = SharedMemory<Config>;
  using Record = TraceRecord<Config>;
  using Rows = RegisterTile<16, 8>;  // a warp's rows

 public:
  explicit __device__ Trace(const Args& args) : args_(args) {}

  // Q's slab as the product read it, by its address or in registers; K by its address, before it is
  // released; S before scale and mask.
  template <class Queries, class Scores>
  __device__ __forceinline__ void scores(const Tile& tile, int block, const Queries& queries,
                                         std::uint32_t keys, const Scores& scores) const {
    Record* record = record_of(tile, block);
    if (record == nullptr) return;
    write_queries(tile, record->Q, queries);
    write_block(record->K, keys);
    write_accumulators(tile, record->S_pre_scaling, scores);
  }

  // After the exponentials of the block; `before` is the softmax before it.
  template <class Softmax>
  __device__ __forceinline__ void statistics(const Tile& tile, int block, const Softmax& before,
                                             const Softmax& softmax) const {
    Record* record = record_of(tile, block);
    if (record == nullptr) return;
    unroll<Rows::kLaneRows>([&](int i) {
      const int row = lane_row(i);
      const bool is_real = exists(tile, row);
      const float sum = softmax.sum(i);  // by all lanes of the row
      if (thread() % 4 != 0) return;
      record->M[row] = is_real ? softmax.maximum(i) : -kInfinity;
      record->L[row] = is_real ? sum : 0;
      record->O_scale[row] = is_real ? softmax.rescaled_since(before, i) : 0;
    });
  }

  // Once the product that read P is complete; V by its address, before it is released.
  template <class Output>
  __device__ __forceinline__ void output(const Tile& tile, int block,
                                         const Fragments<Config::B_c>& probabilities,
                                         std::uint32_t values, const Output& output) const {
    Record* record = record_of(tile, block);
    if (record == nullptr) return;
    write_block(record->V, values);
    write_fragments(tile, record->P, probabilities);
    write_accumulators(tile, record->O, output);
  }

  // A block that the warpgroup does not look at: no row of its slab sees a key of this block or of
  // an earlier one.
  template <class Queries>
  __device__ __forceinline__ void skipped_keys(const Tile& tile, int block, const Queries& queries,
                                               std::uint32_t keys) const {
    Record* record = record_of(tile, block);
    if (record == nullptr) return;
    write_queries(tile, record->Q, queries);
    write_block(record->K, keys);
    zero(record->S_pre_scaling);
    const int row = thread() % 128;
    if (row >= kSlabRows) return;
    record->M[slab_row() + row] = -kInfinity;
    record->L[slab_row() + row] = record->O_scale[slab_row() + row] = 0;
  }

  __device__ __forceinline__ void skipped_values(const Tile& tile, int block,
                                                 std::uint32_t values) const {
    Record* record = record_of(tile, block);
    if (record == nullptr) return;
    write_block(record->V, values);
    zero(record->P);
    zero(record->O);
  }

 private:
  // Null in a call without a trace, and for a block that no row of the tile sees: no simulation has
  // such a block, and without keys it has no memory.
  __device__ Record* record_of(const Tile& tile, int block) const {
    const int seq_len_q = static_cast<int>(args_.Sq), seq_len_k = static_cast<int>(args_.Sk);
    const int rows = min(tile.first_query + Config::B_r, seq_len_q);
    const int seen = Config::causal ? rows + seq_len_k - seq_len_q : seq_len_k;
    if (args_.trace.data == nullptr || block * Config::B_c >= seen) return nullptr;
    return args_.trace.template at<Record>(tile.batch, tile.head, tile.first_query / Config::B_r,
                                           block);
  }

  // The warpgroup's slab, from where TMA left it.
  __device__ void write_queries(const Tile&, float (&to)[Config::B_r][Config::d_head],
                                std::uint32_t queries) const {
    copy<kSlabRows>(to + slab_row(), queries, thread() % 128, 128);
  }

  __device__ __forceinline__ void write_queries(const Tile& tile,
                                                float (&to)[Config::B_r][Config::d_head],
                                                const Fragments<Config::d_head>& queries) const {
    write_fragments(tile, to, queries);
  }

  // Writes a block of keys or values; each warpgroup writes a part.
  __device__ void write_block(float (&to)[Config::B_c][Config::d_head], std::uint32_t block) const {
    constexpr int kThreads = 128 * Config::n_warpgroups;
    copy<Config::B_c>(to, block, thread(), kThreads);
  }

  // kRows rows in panels, which lie in shared memory as SharedMemory says.
  template <int kRows>
  __device__ static void copy(float (*to)[Config::d_head], std::uint32_t from, int thread,
                              int threads) {
    constexpr int kPairs = Config::d_head / 2;
#pragma unroll 1
    for (int i = thread; i < kRows * kPairs; i += threads) {
      const int row = i / kPairs, column = i % kPairs * 2;
      const int panel_row = column / 64 * kRows + row, chunk = column % 64 / 8 ^ row % 8;
      const float2 pair = ptx::unpack<Element>(
          ptx::load_shared_4(from + panel_row * kPanelRowBytes + chunk * 16 + column % 8 * 2));
      to[row][column] = pair.x;
      to[row][column + 1] = pair.y;
    }
  }

  template <class Values>
  __device__ __forceinline__ void write_accumulators(const Tile& tile,
                                                     float (&to)[Config::B_r][Values::kColumns],
                                                     const Values& values) const {
    unroll<Values::kLaneRows>([&](int i) {
      const int row = lane_row(i);
      const bool is_real = exists(tile, row);
      float* lane = to[row] + Rows::first_column(thread() % 32);
      unroll<Values::kLaneColumns>(
          [&](int column) { lane[Values::column_of(column)] = is_real ? values(i, column) : 0; });
    });
  }

  // A left operand, as a product read it.
  template <int kColumns>
  __device__ __forceinline__ void write_fragments(
      const Tile& tile, float (&to)[Config::B_r][kColumns],
      const std::uint32_t (&fragments)[kColumns / 16][4]) const {
    unroll<Rows::kLaneRows>([&](int i) {
      const int row = lane_row(i);
      const bool is_real = exists(tile, row);
      float* lane = to[row] + Rows::first_column(thread() % 32);
      unroll<kColumns / 8>([&](int group) {
        const float2 pair = ptx::unpack<Element>(fragments[group / 2][group % 2 * 2 + i]);
        lane[8 * group] = is_real ? pair.x : 0;
        lane[8 * group + 1] = is_real ? pair.y : 0;
      });
    });
  }

  // The slab's rows.
  template <int kColumns>
  __device__ void zero(float (&to)[Config::B_r][kColumns]) const {
#pragma unroll 1
    for (int i = thread() % 128; i < kSlabRows * kColumns; i += 128)
      to[slab_row() + i / kColumns][i % kColumns] = 0;
  }

  // The thread's number among the computing threads. It is read anew each time: between the hooks
  // all registers are taken.
  __device__ static int thread() { return static_cast<int>(ptx::reread_thread_index()) - 128; }
  // The slab's first row of the tile.
  __device__ static int slab_row() { return thread() / 128 * kSlabRows; }

  // The lane's rows of the tile.
  __device__ int lane_row(int i) const {
    return slab_row() + thread() % 128 / 32 * 16 + Rows::first_row(thread() % 32) + Rows::row_of(i);
  }
  __device__ bool exists(const Tile& tile, int row) const {
    return tile.first_query + row < static_cast<int>(args_.Sq);
  }

  const Args& args_;
};

}  // namespace kernelmint::flash_forward::sm90a
