// How a warpgroup's slab of the output leaves its registers.
#pragma once

#include <cstdint>

#include "flash_forward/sm90a_problem.h"
#include "flash_forward/sm90a_shared_memory.cuh"
#include "flash_forward/sm90a_tiles.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/tma.cuh"
#include "register_tile.cuh"

namespace kernelmint::flash_forward::sm90a {

// O = (P V) / l and the log-sum-exp of each row.
template <class Config>
class Epilogue {
  using Element = typename Config::dtype;
  using Shared = SharedMemory<Config>;
  using Args = typename Config::Args;

 public:
  __device__ Epilogue(const Args& args, const Shared& shared, int warpgroup)
      : args_(args), shared_(shared), warpgroup_(warpgroup) {}

  // To where the slab of Q was, from where the storing thread sends it on.
  template <class Output, class Softmax>
  __device__ __forceinline__ void to_shared(const Tile& tile, int buffer, Output& output,
                                            Softmax softmax) const {
    normalise(output, softmax);
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
    const std::uint32_t rows = shared_.queries(buffer, warpgroup_) + row * Shared::kPanelRowBytes;
    unroll<Output::kColumns / 16>([&](int i) {
      std::uint32_t fragment[4];
      output.template pack_operand<Element>(0, i, fragment);
      const int chunk = (i % 4 * 2 + lane / 16) ^ (row & 7);
      ptx::stmatrix_x4(rows + i / 4 * Shared::kSlabRows * Shared::kPanelRowBytes + chunk * 16,
                       fragment);
    });
    ptx::fence_async_shared();
    __syncwarp();
    if (lane == 0)
      ptx::mbarrier_arrive(shared_.template full<typename Shared::Outputs>(buffer, warpgroup_));
    store_log_sum_exp(tile, softmax);
  }

  // To global memory, 16 bytes a lane.
  template <class Output, class Softmax>
  __device__ __forceinline__ void to_global(const Tile& tile, Output& output,
                                            Softmax softmax) const {
    normalise(output, softmax);
    Element* o = args_.o.template as<Element>() + tile.batch * args_.o.stride[0] +
                 tile.head * args_.o.stride[2] + threadIdx.x % 4 * 8;
    unroll<Output::kLaneRows>([&](int row) {
      const int query = query_row(tile, row);
      unroll<Output::kColumns / 32>([&](int i) {
        std::uint32_t chunk[4];
        unroll<4>([&](int j) { chunk[j] = output.template packed_pair<Element>(row, 4 * i + j); });
        transpose_quad(chunk);
        if (query < args_.Sq)
          *reinterpret_cast<uint4*>(o + query * args_.o.stride[1] + i * 32) =
              uint4{chunk[0], chunk[1], chunk[2], chunk[3]};
      });
    });
    store_log_sum_exp(tile, softmax);
  }

 private:
  template <class Output, class Softmax>
  __device__ __forceinline__ static void normalise(Output& output, Softmax& softmax) {
    softmax.reduce();
    unroll<Output::kLaneRows>([&](int row) {
      const float factor = softmax.normalizer(row);
      // A row that saw no key is zero, whatever the values were.
      output.for_each(row, [&](float& value) { value = factor == 0 ? 0 : value * factor; });
    });
  }

  template <class Softmax>
  __device__ __forceinline__ void store_log_sum_exp(const Tile& tile,
                                                    const Softmax& softmax) const {
    if (args_.lse.data == nullptr || threadIdx.x % 4 != 0) return;
    float* lse = args_.lse.template as<float>() + tile.batch * args_.lse.stride[0] +
                 tile.head * args_.lse.stride[1];
    unroll<2>([&](int row) {
      const int query = query_row(tile, row);
      if (query < args_.Sq) lse[query * args_.lse.stride[2]] = softmax.log_sum_exp(row);
    });
  }

  __device__ __forceinline__ int query_row(const Tile& tile, int row) const {
    return tile.first_row + warpgroup_ * Shared::kSlabRows + threadIdx.x % 128 / 32 * 16 +
           RegisterTile<16, 8>::first_row(threadIdx.x % 32) + RegisterTile<16, 8>::row_of(row);
  }

  // Of the four lanes that share a row, lane i gets the i-th value of each.
  __device__ __forceinline__ static void transpose_quad(std::uint32_t (&values)[4]) {
    unroll<2>([&](int level) {
      const int distance = 1 << level;
      const bool upper = threadIdx.x & distance;
      unroll<2>([&](int i) {
        const int low = level == 0 ? 2 * i : i, high = low + distance;
        const std::uint32_t received =
            __shfl_xor_sync(~0u, upper ? values[low] : values[high], distance);
        if (upper)
          values[low] = received;
        else
          values[high] = received;
      });
    });
  }

  const Args& args_;
  const Shared shared_;
  const int warpgroup_;
};

}  // namespace kernelmint::flash_forward::sm90a
