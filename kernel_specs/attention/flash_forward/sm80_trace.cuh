// The values that a traced configuration writes: every intermediate of every step, as family.yaml's
// `trace:` lists them.
#pragma once

#include <cstdint>

#include "attention/flash_forward/sm80_work.cuh"
#include "attention/sm80_tiles.cuh"
#include "attention/softmax.cuh"
#include "flash_forward/trace.h"
#include "ptx/math.cuh"
#include "ptx/shared_memory.cuh"
#include "register_tile.cuh"

namespace kernelmint::flash_forward::sm80 {

using namespace attention;
using namespace attention::sm80;

// One step of one block of threads. Rows past the last query see no key, as in the simulation.
template <class Config>
class Trace {
  using Element = typename Config::dtype;
  using Layout = SharedLayout<Config::d_head, Config::swizzled>;
  using Record = TraceRecord<Config>;

 public:
  __device__ Trace(const typename Config::Args& args, const Work<Config>& work, int block)
      : work_(work), record_(nullptr) {
    if (args.trace.data != nullptr)
      record_ = args.trace.template at<Record>(work.batch, work.head, work.first_row / Config::B_r,
                                               block);
  }

  // A tile of shared memory, as the block of threads holds it.
  template <int kRows>
  __device__ void tile(float (Record::*tensor)[kRows][Config::d_head], std::uint32_t shared) const {
    if (record_ == nullptr) return;
    for (int i = threadIdx.x; i < kRows * Config::d_head / 2; i += Config::threads) {
      const int row = 2 * i / Config::d_head, column = 2 * i % Config::d_head;
      const float2 pair =
          ptx::unpack<Element>(ptx::load_shared_4(shared + Layout::offset(row, column / 8) +
                                                  column % 8 * static_cast<int>(sizeof(Element))));
      (record_->*tensor)[row][column] = pair.x;
      (record_->*tensor)[row][column + 1] = pair.y;
    }
  }

  // A RegisterTile of this warp. With kRounded, as it goes into the next product.
  template <bool kRounded = false, class Tile>
  __device__ void accumulators(float (Record::*tensor)[Config::B_r][Tile::kColumns],
                               const Tile& values) const {
    if (record_ == nullptr) return;
    unroll<Tile::kLaneRows>([&](int row) {
      float* to = (record_->*tensor)[work_.local_row(row)] + Tile::first_column(work_.lane);
      unroll<Tile::kLaneColumns>([&](int column) {
        float value = values(row, column);
        if (kRounded) value = ptx::unpack<Element>(ptx::pack<Element>(value, value)).x;
        to[Tile::column_of(column)] = exists(row) ? value : 0;
      });
    });
  }

  // One number for each of this lane's rows.
  __device__ void row(float (Record::*tensor)[Config::B_r], int row, float value,
                      float if_unseen) const {
    if (record_ != nullptr && work_.lane % 4 == 0)
      (record_->*tensor)[work_.local_row(row)] = exists(row) ? value : if_unseen;
  }

 private:
  __device__ bool exists(int row) const { return work_.query_row(row) < work_.seq_len_q; }

  const Work<Config>& work_;
  Record* record_;
};

}  // namespace kernelmint::flash_forward::sm80
