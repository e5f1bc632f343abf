// The epilogue: normalises a warpgroup's slab of the output and stores it.
#pragma once

#include <cstdint>

#include "attention/flash_forward/hidden_values.cuh"
#include "attention/flash_forward/sm90a_announced.cuh"
#include "attention/flash_forward/sm90a_problem.h"
#include "attention/flash_forward/sm90a_tile_scheduler.cuh"
#include "ptx/math.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/special_registers.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "register_tile.cuh"

namespace kernelmint::flash_forward::sm90a {

// O = (P V) / l and the log-sum-exp of each row.
template <class Config>
class Epilogue {
  using Element = typename Config::dtype;
  using Shared = SharedMemory<Config>;
  using Args = typename Config::Args;

 public:
  __device__ Epilogue(const Problem<Args>& problem, const Shared& shared, int warpgroup)
      : problem_(problem), args_(problem.args), shared_(shared), warpgroup_(warpgroup) {}

  // Through the warpgroup's slab in shared memory, from where one thread sends it on.
  template <class Output, class Softmax>
  __device__ __forceinline__ void through_shared(const Tile& tile, Output& output,
                                                 Softmax softmax) const {
    normalise(output, softmax);
    finish();  // the tile before
    synchronise();
    const int thread = ptx::reread_thread_index();  // addresses are not kept from tile to tile
    const int lane = thread % 32, row = thread % 128 / 32 * 16 + lane % 16;
    const std::uint32_t slab = shared_.outputs(warpgroup_);
    const std::uint32_t rows = slab + row * kPanelRowBytes;
    FiniteCheck<Element> check;
    unroll<Output::kColumns / 16>([&](int i) {
      std::uint32_t fragment[4];
      output.template pack_operand<Element>(0, i, fragment);
      if constexpr (Config::causal) unroll<4>([&](int j) { check.look_at(j, fragment[j]); });
      const int chunk = (i % 4 * 2 + lane / 16) ^ (row & 7);
      ptx::stmatrix_x4(rows + i / 4 * kSlabRows * kPanelRowBytes + chunk * 16, fragment);
    });
    if constexpr (Config::causal)
      if (check.fails()) [[unlikely]]
        remake<Output>(tile, 0, [&](int slab_row, int, int, int column, Element x) {
          const int chunk = column % 64 / 8 ^ (slab_row & 7);
          ptx::store_shared(slab + column / 64 * kSlabRows * kPanelRowBytes +
                                slab_row * kPanelRowBytes + chunk * 16 + column % 8 * 2,
                            reinterpret_cast<const std::uint16_t&>(x));
        });
    ptx::fence_async_shared();
    synchronise();
    if (is_storer()) {
      for (int panel = 0; panel < Shared::kPanels; ++panel)
        ptx::tma_store_5d(problem_.o.map, slab + panel * kSlabRows * kPanelRowBytes, panel * 64, 0,
                          first_query(tile), tile.head, tile.batch);
      ptx::bulk_commit_group();
    }
    store_log_sum_exp(tile, softmax);
  }

  // Waits until the slab has been read.
  __device__ __forceinline__ void finish() const {
    if (is_storer()) ptx::bulk_wait_group_read<0>();
  }

  // To global memory, 16 bytes a lane; of the columns from `first_column` on, which may be all that
  // `output` has.
  template <class Output, class Softmax>
  __device__ __forceinline__ void to_global(const Tile& tile, Output& output, Softmax softmax,
                                            int first_column = 0) const {
    normalise(output, softmax);
    Element* o = args_.o.template as<Element>() + tile.batch * args_.o.stride[0] +
                 first_head(tile) * args_.o.stride[2] + first_column + threadIdx.x % 4 * 8;
    FiniteCheck<Element> check;
    unroll<Output::kLaneRows>([&](int row) {
      // All of a row at a time: one exchange between lanes hides the latency of another.
      std::uint32_t chunks[Output::kColumns / 32][4];
      unroll<Output::kColumns / 32>([&](int i) {
        unroll<4>(
            [&](int j) { chunks[i][j] = output.template packed_pair<Element>(row, 4 * i + j); });
        transpose_quad(chunks[i]);
        if constexpr (Config::causal) unroll<4>([&](int j) { check.look_at(j, chunks[i][j]); });
      });
      const auto [query, head, exists] = place_of(tile, row);
      if (!exists) return;
      Element* columns = o + query * args_.o.stride[1] + head * args_.o.stride[2];
      unroll<Output::kColumns / 32>([&](int i) {
        *reinterpret_cast<uint4*>(columns + i * 32) =
            uint4{chunks[i][0], chunks[i][1], chunks[i][2], chunks[i][3]};
      });
    });
    if constexpr (Config::causal)
      if (check.fails()) [[unlikely]]
        remake<Output>(tile, first_column, [&](int, int query, int head, int column, Element x) {
          *args_.o.template at<Element>(tile.batch, query, head, first_column + column) = x;
        });
    store_log_sum_exp(tile, softmax);
  }

 private:
  // Rows of the warp that hidden values reached, of the columns from `first_column` on; calls
  // store(slab_row, query, head, column, x), with the column counted from there.
  template <class Output, class Store>
  __device__ __forceinline__ void remake(const Tile& tile, int first_column,
                                         const Store& store) const {
    if (first_query(tile) >= args_.Sq) return;
    __syncwarp();
    const int first_row = ptx::reread_thread_index() % 128 / 32 * 16;  // not kept from tile to tile
#pragma unroll 1
    for (int slab_row = first_row; slab_row < first_row + 16; ++slab_row) {
      const int query = first_query(tile) + problem_.rows.query(slab_row);
      if (slab_row >= problem_.rows.used() || query >= args_.Sq) break;
      const int head = first_head(tile) + problem_.rows.head(slab_row);
      remake_row<Config, Output::kColumns>(
          args_, tile.batch, head, query, first_column,
          [&](int column, Element x) { store(slab_row, query, head, column, x); });
    }
  }

  __device__ __forceinline__ static bool is_storer() { return threadIdx.x % 128 == 0; }

  // The warpgroup's threads.
  __device__ __forceinline__ void synchronise() const {
    ptx::named_barrier_sync(1 + Config::n_warpgroups + warpgroup_, 128);
  }

  template <class Output, class Softmax>
  __device__ __forceinline__ static void normalise(Output& output, Softmax& softmax) {
    softmax.reduce();
    // Not OnlineSoftmax's normalizer, whose branches for extreme sums took some 200 cycles of each
    // tile.
    const auto factor_of = [](float sum) { return sum == 0 ? 0.f : ptx::reciprocal(sum); };
    const float factors[] = {factor_of(softmax.row(0).sum), factor_of(softmax.row(1).sum)};
    // A row that saw no key is zero, whatever the values were.
    if (__any_sync(~0u, factors[0] == 0 || factors[1] == 0))
      unroll<2>([&](int row) {
        if (factors[row] == 0) output.for_each(row, [](float& value) { value = 0; });
      });
    unroll<2>([&](int row) { output.for_each(row, [&](float& value) { value *= factors[row]; }); });
  }

  template <class Softmax>
  __device__ __forceinline__ void store_log_sum_exp(const Tile& tile,
                                                    const Softmax& softmax) const {
    if (args_.lse.data == nullptr || threadIdx.x % 4 != 0) return;
    float* lse = args_.lse.template as<float>() + tile.batch * args_.lse.stride[0] +
                 first_head(tile) * args_.lse.stride[1];
    unroll<2>([&](int row) {
      const auto [query, head, exists] = place_of(tile, row);
      if (exists)
        lse[query * args_.lse.stride[2] + head * args_.lse.stride[1]] = softmax.log_sum_exp(row);
    });
  }

  __device__ __forceinline__ int first_query(const Tile& tile) const {
    return tile.first_query + warpgroup_ * problem_.rows.queries;
  }
  __device__ __forceinline__ int first_head(const Tile& tile) const {
    return tile.head * problem_.rows.heads;
  }

  // The row of O that one of the lane's rows is: the query, and the head, counted from the tile's
  // first.
  struct Place {
    int query, head;
    bool exists;
  };
  __device__ __forceinline__ Place place_of(const Tile& tile, int row) const {
    using Rows = RegisterTile<16, 8>;
    const PackedRows& rows = problem_.rows;
    const int slab_row =
        threadIdx.x % 128 / 32 * 16 + Rows::first_row(threadIdx.x % 32) + Rows::row_of(row);
    const int query = first_query(tile) + rows.query(slab_row);
    return {query, rows.head(slab_row), slab_row < rows.used() && query < args_.Sq};
  }

  const Problem<Args>& problem_;
  const Args& args_;
  const Shared shared_;
  const int warpgroup_;
};

}  // namespace kernelmint::flash_forward::sm90a
