// Attention forward for compute capability 8.0 and later: FlashAttention-2 (Dao, 2023) on mma.sync.
// A block of threads owns B_r query rows of one head and walks the key blocks of B_c rows from the
// last to the first, so that the blocks that need masks come first. Scores, probabilities and
// output stay in registers; each warp owns whole rows, so that no reduction crosses warps.
#pragma once

#include <cstdint>

#include "attention/flash_forward/hidden_values.cuh"
#include "attention/flash_forward/sm80_pipeline.cuh"
#include "attention/flash_forward/sm80_trace.cuh"
#include "attention/flash_forward/sm80_work.cuh"
#include "attention/sm80_tiles.cuh"
#include "attention/softmax.cuh"
#include "device_assert.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/special_registers.cuh"
#include "register_tile.cuh"

namespace kernelmint::flash_forward {
namespace sm80 {

using namespace attention;
using namespace attention::sm80;

template <class Config>
class Forward {
  using Element = typename Config::dtype;
  using Args = typename Config::Args;
  using Layout = SharedLayout<Config::d_head, Config::swizzled>;

  static constexpr int kRowsPerWarp = Config::B_r / Config::n_warps;
  static constexpr int kRowTiles = kRowsPerWarp / 16;     // tiles of 16 query rows
  static constexpr int kKeyTiles = Config::B_c / 16;      // slices of P V's reduction
  static constexpr int kHeadTiles = Config::d_head / 16;  // slices of Q K^T's reduction

  // Shared memory: Q, which O passes through at the end, then one block of K and one of V.
  static constexpr int kTileQ = 0;
  static constexpr int kTileK = kTileQ + Config::B_r * Layout::kRowBytes;
  static constexpr int kTileV = kTileK + Config::B_c * Layout::kRowBytes;
  static_assert(kTileV + Config::B_c * Layout::kRowBytes == Config::smem_bytes);

  using Scores = RegisterTile<kRowsPerWarp, Config::B_c>;
  using Output = RegisterTile<kRowsPerWarp, Config::d_head>;
  using Softmax = OnlineSoftmax<Output::kLaneRows, Config::optimized_softmax>;
  // The operands along the reduction, 16 wide: columns of Q and K, rows of V.
  template <int kTiles, int kSlices, int kPerLoad>
  using Stream = FragmentStream<kTiles, kSlices, kPerLoad, Config::mma_double_buffer_loads>;
  using QueryStream = Stream<kRowTiles, kHeadTiles, Config::Q_mma_load_K_tiles>;
  using KeyStream = Stream<kKeyTiles, kHeadTiles, Config::K_mma_load_K_tiles>;
  using ValueStream = Stream<kHeadTiles, kKeyTiles, Config::V_mma_load_K_tiles>;

 public:
  __device__ Forward(const Args& args, std::uint32_t shared)
      : args_(args),
        work_(args, blockIdx.x, threadIdx.x),
        keys_seen_(work_.keys_seen(work_.query_row(0)) - Scores::first_column(work_.lane)),
        shared_(shared),
        query_addresses_(shared + kTileQ + work_.warp_row * Layout::kRowBytes),
        value_addresses_(shared + kTileV),
        key_addresses_(shared + kTileK),
        pipeline_(args, work_, shared + kTileK, shared + kTileV),
        softmax_(fmaxf(fabsf(args.scale), kLeastScale)) {
    output_.zero();
  }

  // Prologue, mainloop from the last block of keys to the first, epilogue.
  __device__ __forceinline__ void run() {
    int block = work_.key_blocks - 1;
    if (block >= 0) {
      load_queries();
      pipeline_.prefetch_first_keys();
      step<true, true>(block--);
      if constexpr (Config::causal)
        for (; block >= work_.unmasked_blocks; --block) step<false, true>(block);
      for (; block >= 0; --block) step<false, false>(block);
    }
    softmax_.reduce();
    const Work<Config> work(args_, ptx::reread_block_index(), ptx::reread_thread_index());
    store_log_sum_exp(work);
    store_output(work);
  }

 private:
  // With a scale of 0 a masked score, -inf, must stay -inf.
  static constexpr float kLeastScale = 1e-30f;

  // The mainloop's body, one block of keys and values: S = Q K^T, P = softmax(S), O += P V.
  template <bool kFirst, bool kMasked>
  __device__ __forceinline__ void step(int block) {
    KERNELMINT_DEVICE_ASSERT(block >= 0 && block < work_.key_blocks);
    pipeline_.template wait_for_keys<kFirst>(block);
    if (kFirst) prepare_queries();
    pipeline_.template prefetch_values<kFirst>(block);
    Scores scores;
    multiply_queries_keys(scores);
    if constexpr (Traced<Config>) trace_scores(scores, block);
    if (kMasked && (Config::causal || block >= work_.unmasked_blocks)) mask(scores, block);
    pipeline_.template wait_for_values<kFirst>(block);
    pipeline_.prefetch_next_keys(block);
    const auto softmax_before = softmax_;
    softmax_.template update_maximum<kFirst>(scores, output_);
    multiply_probabilities_values(scores);
    if constexpr (Traced<Config>) trace_output(scores, softmax_before, block);
  }

  // S = Q K^T.
  __device__ __forceinline__ void multiply_queries_keys(Scores& scores) {
    const auto query_source = query_addresses_.parts();
    const auto key_source = key_addresses_.parts();
    KeyStream keys;
    if constexpr (!QueryStream::kResident) queries_.start(query_source);
    keys.start(key_source);
    scores.zero();
    unroll<kHeadTiles>([&](int i) {
      queries_.advance(i, query_source, scores(0, 0));
      keys.advance(i, key_source, scores(0, 0));
      multiply_add<Element>(scores, queries_[i], keys[i]);
    });
  }

  // O += P V. The probabilities of slice i are made right before their products, so that the
  // exponentials of one slice run while the tensor cores work on another.
  __device__ __forceinline__ void multiply_probabilities_values(Scores& scores) {
    const auto value_source = value_addresses_.parts();
    ValueStream values;
    values.start(value_source);
    unroll<kKeyTiles>([&](int i) {
      values.advance(i, value_source, output_(0, 0));
      Slice<kRowTiles> probabilities;
      unroll<kRowTiles>([&](int row_tile) {
        softmax_.exponentiate(scores, row_tile, i);
        scores.template pack_operand<Element>(row_tile, i, probabilities.tiles[row_tile]);
      });
      multiply_add<Element>(output_, probabilities, values[i]);
    });
  }

  // Scores of keys that a row does not see become -inf.
  __device__ __forceinline__ void mask(Scores& scores, int block) const {
    // Under a causal mask registers are short: not even this one is kept from block to block.
    constexpr bool kAnew = Config::causal;
    const int keys_seen = kAnew ? work_.keys_seen(ptx::recomputed(work_.first_row) +
                                                  work_.warp_row + Scores::first_row(work_.lane)) -
                                      Scores::first_column(work_.lane)
                                : keys_seen_;
    unroll<Scores::kLaneRows>([&](int row) {
      const int seen = keys_seen - block * Config::B_c + (Config::causal ? Scores::row_of(row) : 0);
      unroll<Scores::kLaneColumns>([&](int column) {
        if (Scores::column_of(column) >= seen) scores(row, column) = -kInfinity;
      });
    });
  }

  __device__ __forceinline__ void load_queries() {
    const TileCopy<Config, Config::B_r> queries(
        shared_ + kTileQ, args_.q.template at<const Element>(work_.batch, 0, work_.head),
        args_.q.stride[1], work_.first_row);
    queries.template request<true>(work_.seq_len_q - work_.first_row);
  }

  // The running maximum wants a positive factor: a negative scale goes to the queries.
  __device__ __forceinline__ void prepare_queries() {
    if (args_.scale < 0) {
      for (int row = 0; row < kRowsPerWarp; ++row)
        for (int column = work_.lane; column < Config::d_head / 2; column += 32) {
          const std::uint32_t address =
              shared_ + kTileQ + (work_.warp_row + row) * Layout::kRowBytes + column * 4;
          ptx::store_shared(address, ptx::load_shared_4(address) ^ 0x80008000u);
        }
      __syncwarp();
    }
    if constexpr (QueryStream::kResident) queries_.start(query_addresses_.parts());
  }

  __device__ __forceinline__ void store_log_sum_exp(const Work<Config>& work) const {
    if (args_.lse.data == nullptr || work.lane % 4 != 0) return;
    float* lse = args_.lse.template at<float>(work.batch, work.head);
    unroll<Output::kLaneRows>([&](int row) {
      if (work.query_row(row) < work.seq_len_q)
        lse[work.query_row(row) * args_.lse.stride[2]] = softmax_.log_sum_exp(row);
    });
  }

  // O = (P V) / l, in the warp's own rows of Q's tile, and from there in whole chunks.
  __device__ __forceinline__ void store_output(const Work<Config>& work) {
    FiniteCheck<Element> check;
    unroll<Output::kLaneRows>([&](int row) {
      const float factor = softmax_.normalizer(row);
      output_.for_each(row, [&](float& value) { value *= factor; });
      unroll<Output::kColumnGroups>([&](int chunk) {
        ptx::store_shared(shared_ + kTileQ + Layout::offset(work.local_row(row), chunk) +
                              2 * Output::first_column(work.lane),
                          output_.template packed_pair<Element>(row, chunk));
        if constexpr (Config::causal)
          check.look_at(row * Output::kColumnGroups + chunk,
                        output_.template packed_pair<Element>(row, chunk));
      });
    });
    __syncwarp();
    Element* output =
        args_.o.template at<Element>(work.batch, 0, work.head) + work.lane % Layout::kChunks * 8;
    constexpr int kPassRows = 32 / Layout::kChunks;
    unroll<kRowsPerWarp / kPassRows>([&](int pass) {
      const int row = work.warp_row + pass * kPassRows + work.lane / Layout::kChunks;
      if (work.first_row + row < work.seq_len_q)
        *reinterpret_cast<uint4*>(output + (work.first_row + row) * args_.o.stride[1]) =
            ptx::load_shared_16(shared_ + kTileQ +
                                Layout::offset(row, work.lane % Layout::kChunks));
    });
    if constexpr (Config::causal)
      if (check.fails()) [[unlikely]] {
        __syncwarp();
#pragma unroll 1
        for (int row = 0; row < kRowsPerWarp; ++row) {
          const int query = work.first_row + work.warp_row + row;
          if (query >= work.seq_len_q) break;
          Element* o = args_.o.template at<Element>(work.batch, query, work.head);
          remake_row<Config, Config::d_head>(args_, work.batch, work.head, query, 0,
                                             [&](int column, Element x) { o[column] = x; });
        }
      }
  }

  __device__ void trace_scores(const Scores& scores, int block) const {
    using Record = TraceRecord<Config>;
    const Trace<Config> trace(args_, work_, block);
    trace.tile(&Record::Q, shared_ + kTileQ);
    trace.tile(&Record::K, shared_ + kTileK);
    trace.accumulators(&Record::S_pre_scaling, scores);
  }

  __device__ void trace_output(const Scores& probabilities, const Softmax& before,
                               int block) const {
    using Record = TraceRecord<Config>;
    const Trace<Config> trace(args_, work_, block);
    trace.tile(&Record::V, shared_ + kTileV);
    trace.template accumulators<true>(&Record::P, probabilities);
    trace.accumulators(&Record::O, output_);
    for (int row = 0; row < Output::kLaneRows; ++row) {
      trace.row(&Record::M, row, softmax_.maximum(row), -kInfinity);
      trace.row(&Record::L, row, softmax_.sum(row), 0);
      trace.row(&Record::O_scale, row, softmax_.rescaled_since(before, row), 0);
    }
  }

  const Args& args_;
  const Work<Config> work_;
  const int keys_seen_;  // by the lane's first row, counted from the lane's first column
  const std::uint32_t shared_;
  const FragmentAddresses<Layout, Operand::kLeft> query_addresses_;
  const FragmentAddresses<Layout, Operand::kRightTransposed> value_addresses_;
  const FragmentAddresses<Layout, Operand::kRight> key_addresses_;
  KeyValuePipeline<Config> pipeline_;
  QueryStream queries_;
  Softmax softmax_;
  Output output_;
};

}  // namespace sm80

template <class Config>
__global__ void __launch_bounds__(Config::threads, Config::resident_blocks)
    flash_forward_sm80(const __grid_constant__ typename Config::Args args) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  sm80::Forward<Config>(args, ptx::shared_address(shared_memory)).run();
}

}  // namespace kernelmint::flash_forward
