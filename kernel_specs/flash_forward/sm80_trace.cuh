// What a traced configuration writes: every intermediate of every step, in the layout of trace.h.
#pragma once

#include <cstdint>

#include "flash_forward/sm80_tiles.cuh"
#include "flash_forward/sm80_work.cuh"
#include "flash_forward/softmax.cuh"
#include "flash_forward/trace.h"
#include "ptx/math.cuh"
#include "ptx/shared_memory.cuh"
#include "register_tile.cuh"

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

 public:
  using Record = TraceRecord<Config::B_r, Config::B_c, Config::d_head>;

  __device__ Trace(const typename Config::Args& args, const Work<Config>& work, int block)
      : work_(work), record_(nullptr) {
    if (args.steps.data != nullptr)
      record_ =
          args.steps.template at<float>(work.batch, work.head, work.first_row / Config::B_r, block);
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

  // A RegisterTile of this warp. With kRounded, as it goes into the next product.
  template <bool kRounded = false, class Tile>
  __device__ void accumulators(int offset, const Tile& values) const {
    if (record_ == nullptr) return;
    unroll<Tile::kLaneRows>([&](int row) {
      unroll<Tile::kLaneColumns>([&](int column) {
        float value = values(row, column);
        if (kRounded) value = ptx::unpack<Element>(ptx::pack<Element>(value, value)).x;
        record_[offset + work_.local_row(row) * Tile::kColumns + Tile::first_column(work_.lane) +
                Tile::column_of(column)] = exists(row) ? value : 0;
      });
    });
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
