// What a traced configuration writes: every intermediate of every step, in the layout of trace.h.
#pragma once

#include <cstdint>

#include "flash_forward/sm80_softmax.cuh"
#include "flash_forward/sm80_tiles.cuh"
#include "flash_forward/sm80_work.cuh"
#include "flash_forward/trace.h"
#include "ptx/math.cuh"
#include "ptx/shared_memory.cuh"

namespace kernelmint::flash_forward::sm80 {

// Whether a configuration is traced. Where it is not, nothing of this file is in its code.
template <class Config>
concept Traced = requires { requires Config::trace; };

// The record of one step of one block of threads, in args.steps [B, H, blocks of queries, blocks of
// keys, floats]. Rows past the last query see no key, as in the simulation.
template <class Config>
class Trace {
  using Element = typename Config::dtype;
  using Layout = SharedLayout<Config::d_head, Config::swizzled>;
  static constexpr int kRows = Config::B_r / Config::n_warps / 8;  // of each lane

 public:
  using Record = TraceRecord<Config::B_r, Config::B_c, Config::d_head>;

  __device__ Trace(const typename Config::Args& args, const Work<Config>& work, int block)
      : work_(work), record_(nullptr) {
    if (args.steps.data != nullptr)
      record_ = args.steps.template as<float>() + work.batch * args.steps.stride[0] +
                work.head * args.steps.stride[1] +
                work.first_row / Config::B_r * args.steps.stride[2] + block * args.steps.stride[3];
  }

  // A tile of shared memory, as the block of threads holds it: `rows` rows.
  __device__ void tile(int offset, std::uint32_t shared, int rows) const {
    if (record_ == nullptr) return;
    for (int i = threadIdx.x; i < rows * Config::d_head / 2; i += Config::threads) {
      const int row = 2 * i / Config::d_head, column = 2 * i % Config::d_head;
      const float2 pair =
          ptx::unpack<Element>(ptx::load_shared_4(shared + Layout::offset(row, column / 8) +
                                                  column % 8 * static_cast<int>(sizeof(Element))));
      record_[offset + 2 * i] = pair.x;
      record_[offset + 2 * i + 1] = pair.y;
    }
  }

  // Accumulators of this warp, float[row tiles][n][4]: rows of 8 n columns. With kRounded, as they
  // go into the next product.
  template <bool kRounded = false, class Accumulators>
  __device__ void accumulators(int offset, const Accumulators& values) const {
    if (record_ == nullptr) return;
    constexpr int kTiles = sizeof(values[0]) / sizeof(values[0][0]);
#pragma unroll
    for (int row = 0; row < kRows; ++row)
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const float* from = &values[row / 2][tile][row % 2 * 2];
        float2 pair = {from[0], from[1]};
        if (kRounded) pair = ptx::unpack<Element>(ptx::pack<Element>(pair.x, pair.y));
        if (!exists(row)) pair = {0, 0};
        float* to =
            record_ + offset + work_.local_row(row) * 8 * kTiles + tile * 8 + work_.lane % 4 * 2;
        to[0] = pair.x;
        to[1] = pair.y;
      }
  }

  // One number for each of this lane's rows.
  __device__ void row(int offset, int row, float value, float if_unseen) const {
    if (record_ != nullptr && work_.lane % 4 == 0)
      record_[offset + work_.local_row(row)] = exists(row) ? value : if_unseen;
  }

 private:
  __device__ bool exists(int row) const { return work_.query_row(row) < work_.seq_len_q; }

  const Work<Config>& work_;
  float* record_;
};

}  // namespace kernelmint::flash_forward::sm80
