// Attention of sequences of any lengths for compute capability 8.0 and later: flash_forward's
// tiles, fragments and softmax, over the queries of all sequences as one list of tiles.
//
// Only the device reads lengths: a launch has as many thread blocks as there may be tiles, and each
// finds its own tile. It walks the blocks of keys that its window holds, from the last to the
// first. A feature that is not asked for costs a branch that all threads of a block take.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "attention/dropout.cuh"
#include "attention/hidden_values.cuh"
#include "attention/pages.cuh"
#include "attention/prefill_scores.cuh"
#include "attention/prefill_tile.cuh"
#include "attention/sm80_tiles.cuh"
#include "attention/softmax.cuh"
#include "cuda_launch.cuh"
#include "integers.h"
#include "ptx/cp_async.cuh"
#include "ptx/math.cuh"
#include "ptx/shared_memory.cuh"
#include "register_tile.cuh"

namespace kernelmint::flash_prefill::sm80 {

using namespace attention;
using namespace attention::sm80;

// Copies blocks of keys, or of values, to shared memory; rows and columns that do not exist become
// zero there.
template <class Config>
class KeyCopy {
  using Element = typename Config::dtype;
  using Layout = SharedLayout<Config::d_head, true>;
  using View = ConstTensorView<4>;

 public:
  static constexpr int kPassRows = Config::threads / Layout::kChunks;
  static constexpr int kPasses = Config::B_c / kPassRows;

  __device__ KeyCopy(std::uint32_t shared, const View& view, std::int64_t columns,
                     const typename Config::Args& args, const Tile<Config>& tile, int kv_head)
      : view_(view),
        table_(args.block_table.template at<const i32>(tile.sequence)),
        table_stride_(args.block_table.stride[1]),
        page_size_(static_cast<int>(args.Tk)),
        num_pages_(args.Nk),
        row_(threadIdx.x / Layout::kChunks),
        shared_(shared + Layout::offset(row_, threadIdx.x % Layout::kChunks)),
        has_column_(static_cast<int>(threadIdx.x % Layout::kChunks) * 8 < columns),
        source_(
            view.template at<const Element>(args.block_table.data == nullptr ? tile.key_entry : 0,
                                            tile.first_key, kv_head) +
            threadIdx.x % Layout::kChunks * 8) {
    if (args.block_table.data == nullptr) table_ = nullptr;
  }

  // Where the thread's chunk of a pass goes.
  __device__ __forceinline__ std::uint32_t destination(int pass) const {
    const int rows = pass * kPassRows;
    return (shared_ ^ (rows & 7) * 16) + rows * Layout::kRowBytes;
  }

  // Starts copying the keys from `first` on, those before `end`.
  __device__ __forceinline__ void request(int first, int end) const {
    const int key = first + row_;
    if (table_ == nullptr) {
      const Element* source = source_ + key * view_.stride[1];
      unroll<kPasses>([&](int pass) {
        ptx::cp_async_16_or_zero(destination(pass), source + pass * kPassRows * view_.stride[1],
                                 has_column_ && key + pass * kPassRows < end);
      });
      return;
    }
    int page = static_cast<unsigned>(key) / page_size_;
    int row = key - page * page_size_;
    unroll<kPasses>([&](int pass) {
      const bool valid = has_column_ && key + pass * kPassRows < end;
      const Element* source = source_;
      if (valid)
        source += page_within(table_[page * table_stride_], num_pages_) * view_.stride[0] +
                  row * view_.stride[1];
      ptx::cp_async_16_or_zero(destination(pass), source, valid);
      row += kPassRows;
      while (row >= page_size_) {
        row -= page_size_;
        ++page;
      }
    });
  }

 private:
  const View& view_;
  const i32* table_;  // null if there are no pages
  const std::int64_t table_stride_;
  const int page_size_;
  const std::int64_t& num_pages_;
  const int row_;
  const std::uint32_t shared_;
  const bool has_column_;
  const Element* source_;
};

template <class Config>
class Prefill {
  using Element = typename Config::dtype;
  using Args = typename Config::Args;
  using Layout = SharedLayout<Config::d_head, true>;

  static constexpr int kKeyTiles = Config::B_c / 16;      // slices of P V's reduction
  static constexpr int kHeadTiles = Config::d_head / 16;  // slices of Q K^T's reduction
  static constexpr int kPassRows = Config::threads / Layout::kChunks;

  // Shared memory: Q, which O passes through at the end, then one block of K and one of V.
  static constexpr int kTileQ = 0;
  static constexpr int kTileK = kTileQ + Config::B_r * Layout::kRowBytes;
  static constexpr int kTileV = kTileK + Config::B_c * Layout::kRowBytes;
  static_assert(kTileV + Config::B_c * Layout::kRowBytes == Config::smem_bytes);

  using Scores = RegisterTile<16, Config::B_c>;
  using Output = RegisterTile<16, Config::d_head>;
  using Softmax = OnlineSoftmax<Output::kLaneRows, true>;
  using QueryStream = FragmentStream<1, kHeadTiles, 0, false>;
  using KeyStream = FragmentStream<kKeyTiles, kHeadTiles, 1, true>;
  using ValueStream = FragmentStream<kHeadTiles, kKeyTiles, 1, false>;

 public:
  __device__ Prefill(const Args& args, const Tile<Config>& tile, std::uint32_t shared)
      : args_(args),
        tile_(tile),
        head_(blockIdx.y),
        warp_row_(threadIdx.x / 32 * 16),
        lane_row_(warp_row_ + Output::first_row(threadIdx.x % 32)),
        lane_column_(Output::first_column(threadIdx.x % 32)),
        first_key_(first_key(tile)),
        end_(tile.seen_behind(min(tile.first_query + Config::B_r, tile.queries) - 1)),
        changes_scores_(changes_scores(args)),
        shared_(shared),
        query_addresses_(shared + kTileQ + warp_row_ * Layout::kRowBytes),
        value_addresses_(shared + kTileV),
        key_addresses_(shared + kTileK),
        keys_(shared + kTileK, args.k, args.D, args, tile, kv_head()),
        values_(shared + kTileV, args.v, args.Dv, args, tile, kv_head()),
        softmax_(changes_scores_ ? 1 : fmaxf(fabsf(args.softmax_scale), kLeastScale)) {
    output_.zero();
  }

  __device__ __forceinline__ void run() {
    if (tile_.first_query < tile_.queries && first_key_ < end_) {
      int block = ceil_div<Config::B_c>(end_ - first_key_) - 1;
      load_queries();
      keys_.request(first_key_ + block * Config::B_c, end_);
      for (; block >= 0; --block) {
        const int key = first_key_ + block * Config::B_c;
        const bool is_whole = key >= tile_.first_seen(last_query()) &&
                              key + Config::B_c <= tile_.seen_behind(tile_.first_query);
        if (is_whole)
          step<false>(key);
        else
          step<true>(key);
      }
    }
    __syncthreads();  // all have read Q
    softmax_.reduce();
    if (args_.s_aux.data != nullptr) add_sink<Element>(softmax_, output_, args_, head_);
    store_log_sum_exp();
    store_output();
  }

 private:
  static constexpr bool kDropsOut = DropsOut<Args>;

  // Random numbers are drawn for 16 keys.
  __device__ __forceinline__ static int first_key(const Tile<Config>& tile) {
    const int first = tile.first_seen(tile.first_query);
    return kDropsOut ? first / 16 * 16 : first;
  }
  __device__ __forceinline__ int kv_head() const {
    return head_ / static_cast<int>(args_.H / args_.Hk);
  }
  __device__ __forceinline__ int last_query() const {
    return min(tile_.first_query + Config::B_r, tile_.queries) - 1;
  }
  // The query of the lane's row `row`.
  __device__ __forceinline__ int query(int row) const {
    return tile_.first_query + lane_row_ + Output::row_of(row);
  }

  // S = Q K^T, P = softmax(S), O += P V of the keys from `key` on. On entry they are on their way.
  template <bool kMasked>
  __device__ __forceinline__ void step(int key) {
    wait();
    if (key + Config::B_c >= end_) prepare_queries();
    values_.request(key, end_);
    Scores scores;
    multiply_queries_keys(scores);
    if (changes_scores_) finish(scores, key);
    if constexpr (kMasked) mask(scores, key);
    wait();
    if (key > first_key_) keys_.request(key - Config::B_c, end_);
    softmax_.template update_maximum<false>(scores, output_);
    if constexpr (kMasked) take_out_hidden_values(key);
    multiply_probabilities_values(scores, key);
  }

  // All requested tiles are there, and all warps have ended their work before them.
  __device__ __forceinline__ static void wait() {
    ptx::cp_async_wait_all();
    __syncthreads();
  }

  __device__ __forceinline__ void multiply_queries_keys(Scores& scores) {
    const auto key_source = key_addresses_.parts();
    KeyStream keys;
    keys.start(key_source);
    scores.zero();
    unroll<kHeadTiles>([&](int i) {
      keys.advance(i, key_source, scores(0, 0));
      multiply_add<Element>(scores, queries_[i], keys[i]);
    });
  }

  __device__ __forceinline__ void multiply_probabilities_values(Scores& scores,
                                                                [[maybe_unused]] int key) {
    const auto value_source = value_addresses_.parts();
    ValueStream values;
    values.start(value_source);
    unroll<kKeyTiles>([&](int i) {
      values.advance(i, value_source, output_(0, 0));
      Slice<1> probabilities;
      softmax_.exponentiate(scores, 0, i);
      if constexpr (kDropsOut)
        drop_out<16>(dropout_of(args_, tile_.sequence, head_), drop_threshold(args_.dropout_p),
                     query(0), key + 16 * i,
                     [&](int row, int column) { scores(row, 4 * i + column) = 0; });
      scores.template pack_operand<Element>(0, i, probabilities.tiles[0]);
      multiply_add<Element>(output_, probabilities, values[i]);
    });
  }

  // Products become scores, if not all that is done to them is a factor.
  __device__ __forceinline__ void finish(Scores& scores, int key) const {
    change_scores(scores, args_, tile_.sequence, head_,
                  [&](int row) { return tile_.own_key(query(row)) - key - lane_column_; });
  }

  // Scores of keys that a row does not see become -inf.
  __device__ __forceinline__ void mask(Scores& scores, int key) const {
    unroll<Scores::kLaneRows>([&](int row) {
      const int from = tile_.first_seen(query(row)) - key - lane_column_;
      const int behind = tile_.seen_behind(query(row)) - key - lane_column_;
      unroll<Scores::kLaneColumns>([&](int column) {
        if (Scores::column_of(column) < from || Scores::column_of(column) >= behind)
          scores(row, column) = -kInfinity;
      });
    });
  }

  // 0 times a value that is not finite is NaN: in a block that some rows see only in part, rows
  // that see such a value have it added here, and the products find zeros in its place.
  __device__ __forceinline__ void take_out_hidden_values(int key) {
    std::uint32_t zeros = 0;  // times 0 a value that is not finite is NaN
    unroll<KeyCopy<Config>::kPasses>([&](int pass) {
      zeros = add_zeros<Element>(ptx::load_shared_16(values_.destination(pass)), zeros);
    });
    const float2 both = ptx::unpack<Element>(zeros);
    if (!__syncthreads_or(!is_finite(both.x) || !is_finite(both.y))) return;
#pragma unroll 1
    for (int i = 0; i < Config::B_c; ++i) {
      bool sees[Output::kLaneRows];
      unroll<Output::kLaneRows>([&](int row) {
        sees[row] =
            key + i >= tile_.first_seen(query(row)) && key + i < tile_.seen_behind(query(row));
      });
      unroll<Output::kColumnGroups>([&](int group) {
        const float2 pair = ptx::unpack<Element>(
            ptx::load_shared_4(shared_ + kTileV + Layout::offset(i, group) + 2 * lane_column_));
        unroll<Output::kLaneRows>([&](int row) {
          if (sees[row] && !is_finite(pair.x)) output_(row, 2 * group) += pair.x;
          if (sees[row] && !is_finite(pair.y)) output_(row, 2 * group + 1) += pair.y;
        });
      });
    }
    __syncthreads();
    unroll<KeyCopy<Config>::kPasses>([&](int pass) {
      ptx::store_shared(values_.destination(pass),
                        finite_values<Element>(ptx::load_shared_16(values_.destination(pass))));
    });
    __syncthreads();
  }

  __device__ __forceinline__ void load_queries() const {
    const int row = threadIdx.x / Layout::kChunks, chunk = threadIdx.x % Layout::kChunks;
    const Element* q = args_.q.template at<const Element>(
        tile_.entry, tile_.first_row + tile_.first_query + row, head_, chunk * 8);
    unroll<Config::B_r / kPassRows>([&](int pass) {
      const int rows = pass * kPassRows;
      const bool exists = chunk * 8 < args_.D && tile_.first_query + row + rows < tile_.queries;
      ptx::cp_async_16_or_zero(
          shared_ + kTileQ + Layout::offset(row + rows, chunk),
          exists ? q + rows * args_.q.stride[1] : args_.q.template as<const Element>(), exists);
    });
  }

  // To registers. The running maximum wants a positive factor: a negative scale goes to the
  // queries.
  __device__ __forceinline__ void prepare_queries() {
    queries_.start(query_addresses_.parts());
    if (!changes_scores_ && args_.softmax_scale < 0)
      unroll<kHeadTiles>([&](int i) {
        for (std::uint32_t& pair : queries_[i].tiles[0]) pair ^= 0x80008000u;
      });
  }

  __device__ __forceinline__ void store_log_sum_exp() const {
    if (args_.lse.data == nullptr || lane_column_ != 0) return;
    float* lse = args_.lse.template at<float>(tile_.entry, head_, tile_.first_row);
    unroll<Output::kLaneRows>([&](int row) {
      if (query(row) < tile_.rows)
        lse[query(row) * args_.lse.stride[2]] =
            query(row) < tile_.queries ? softmax_.log_sum_exp(row) : -kInfinity;
    });
  }

  // O = (P V) / l, in the warp's own rows of Q's tile, and from there in whole chunks. Rows that
  // see no key, and rows after the sequence's, are zero.
  __device__ __forceinline__ void store_output() {
    unroll<Output::kLaneRows>([&](int row) {
      float factor = query(row) < tile_.queries ? softmax_.normalizer(row) : 0;
      if constexpr (kDropsOut) factor *= keep_scale(args_.dropout_p);
      output_.for_each(row, [&](float& value) { value = factor == 0 ? 0 : value * factor; });
      unroll<Output::kColumnGroups>([&](int chunk) {
        ptx::store_shared(shared_ + kTileQ +
                              Layout::offset(lane_row_ + Output::row_of(row), chunk) +
                              2 * lane_column_,
                          output_.template packed_pair<Element>(row, chunk));
      });
    });
    __syncwarp();
    const int lane = threadIdx.x % 32, chunk = lane % Layout::kChunks;
    if (chunk * 8 >= args_.Dv) return;
    constexpr int kRows = 32 / Layout::kChunks;
    Element* o = args_.o.template at<Element>(tile_.entry, tile_.first_row + tile_.first_query,
                                              head_, chunk * 8);
    unroll<16 / kRows>([&](int pass) {
      const int row = warp_row_ + pass * kRows + lane / Layout::kChunks;
      if (tile_.first_query + row < tile_.rows)
        *reinterpret_cast<uint4*>(o + row * args_.o.stride[1]) =
            ptx::load_shared_16(shared_ + kTileQ + Layout::offset(row, chunk));
    });
  }

  const Args& args_;
  const Tile<Config>& tile_;
  const int head_;
  const int warp_row_, lane_row_, lane_column_;
  const int first_key_, end_;  // the keys that a row of the tile sees
  const bool changes_scores_;
  const std::uint32_t shared_;
  const FragmentAddresses<Layout, Operand::kLeft> query_addresses_;
  const FragmentAddresses<Layout, Operand::kRightTransposed> value_addresses_;
  const FragmentAddresses<Layout, Operand::kRight> key_addresses_;
  const KeyCopy<Config> keys_, values_;
  QueryStream queries_;
  Softmax softmax_;
  Output output_;
};

template <class Config>
__global__ void __launch_bounds__(Config::threads, Config::resident_blocks)
    flash_prefill_sm80(const __grid_constant__ typename Config::Args args) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  Tile<Config> tile;
  if (!tile.find(args, blockIdx.x)) return;
  Prefill<Config>(args, tile, ptx::shared_address(shared_memory)).run();
}

}  // namespace kernelmint::flash_prefill::sm80

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  auto args = *static_cast<const typename Config::Args*>(pointer);
  if (args.Nk == 0) args.pages = 0;  // a table cannot name any
  args.softcap = attention::usable_cap(args.softcap);
  if (args.Nq == 0 || args.Tq == 0 || args.H == 0) return {};
  const DeviceScope device(context.device);
  if (device.error != nullptr) return {device.error};
  // The greatest possible number of tiles, whatever the lengths are.
  const std::int64_t tiles = args.cu_seqlens_q.data != nullptr
                                 ? (args.Tq + args.Cq * (Config::B_r - 1)) / Config::B_r
                                 : args.Nq * ceil_div(args.Tq, std::int64_t{Config::B_r});
  return launch_cuda<&flash_prefill::sm80::flash_prefill_sm80<Config>>(
      {.grid = {tiles, args.H}, .block = {Config::threads}, .shared_memory = Config::smem_bytes},
      context, args);
}

}  // namespace kernelmint
