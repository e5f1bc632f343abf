// Attention forward for compute capability 8.0 and later: FlashAttention-2 (Dao, 2023) on mma.sync.
// A block of threads owns B_r query rows of one head and walks the key blocks of B_c rows from the
// last to the first, so that the blocks that need masks come first. Scores, probabilities and
// output stay in registers; each warp owns whole rows, so that no reduction crosses warps.
#pragma once

#include <cstdint>

#include "device_assert.cuh"
#include "flash_forward/sm80_softmax.cuh"
#include "flash_forward/sm80_tiles.cuh"
#include "flash_forward/sm80_trace.cuh"
#include "flash_forward/sm80_work.cuh"
#include "ptx/math.cuh"
#include "ptx/mma.cuh"
#include "ptx/special_registers.cuh"

namespace kernelmint::flash_forward {
namespace sm80 {

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

  using Softmax = OnlineSoftmax<kRowTiles, Config::optimized_softmax>;
  using Scores = float[kRowTiles][Config::B_c / 8][4];
  using Output = float[kRowTiles][Config::d_head / 8][4];
  // Slices of the operands, 16 wide along the reduction: columns of Q, the warp's rows; columns of
  // K, all keys of the block; and keys of V, all columns.
  struct QuerySlice {
    Fragment rows[kRowTiles];
  };
  struct KeySlice {
    Fragment keys[kKeyTiles];
  };
  struct ValueSlice {
    Fragment columns[kHeadTiles];
  };
  template <class Slice, int kSlices, int kPerLoad>
  using Stream = FragmentStream<Slice, kSlices, kPerLoad, Config::mma_double_buffer_loads>;
  using QueryStream = Stream<QuerySlice, kHeadTiles, Config::Q_mma_load_K_tiles>;
  using KeyStream = Stream<KeySlice, kHeadTiles, Config::K_mma_load_K_tiles>;
  using ValueStream = Stream<ValueSlice, kKeyTiles, Config::V_mma_load_K_tiles>;

 public:
  __device__ Forward(const Args& args, std::uint32_t shared)
      : args_(args),
        work_(args, blockIdx.x, threadIdx.x),
        keys_seen_(work_.keys_seen(work_.query_row(0)) - work_.lane % 4 * 2),
        shared_(shared),
        query_addresses_(shared + kTileQ + work_.warp_row * Layout::kRowBytes),
        value_addresses_(shared + kTileV),
        key_addresses_(shared + kTileK),
        keys_(shared + kTileK,
              args.k.template as<const Element>() + work_.batch * args.k.stride[0] +
                  work_.kv_head * args.k.stride[2],
              args.k.stride[1], (work_.key_blocks - 1) * Config::B_c),
        values_(shared + kTileV,
                args.v.template as<const Element>() + work_.batch * args.v.stride[0] +
                    work_.kv_head * args.v.stride[2],
                args.v.stride[1], (work_.key_blocks - 1) * Config::B_c),
        softmax_(fmaxf(fabsf(args.scale), kLeastScale)) {
#pragma unroll
    for (auto& row_tile : output_)
#pragma unroll
      for (auto& tile : row_tile)
#pragma unroll
        for (float& value : tile) value = 0;
  }

  __device__ __forceinline__ void run() {
    int block = work_.key_blocks - 1;
    if (block >= 0) {
      load_queries();
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

  // One block of keys and values: S = Q K^T, P = softmax(S), O += P V.
  template <bool kFirst, bool kMasked>
  __device__ __forceinline__ void step(int block) {
    KERNELMINT_DEVICE_ASSERT(block >= 0 && block < work_.key_blocks);
    if (!Config::eager_load_blocks) request_keys<kFirst>(block);
    wait_for_tiles<Config>();  // K is here, and all warps are done with the previous V
    if (kFirst) prepare_queries();
    if (Config::eager_load_blocks) request_values<kFirst>(block);

    Scores scores;
    multiply_queries_keys(scores);
    if constexpr (Traced<Config>) trace_scores(scores, block);
    if (kMasked && (Config::causal || block >= work_.unmasked_blocks)) mask(scores, block);

    if (!Config::eager_load_blocks) request_values<kFirst>(block);
    wait_for_tiles<Config>();  // V is here, and all warps are done with K
    if (Config::eager_load_blocks && block > 0) request_keys<false>(block - 1);

    const auto softmax_before = softmax_;
    softmax_.template update_maximum<kFirst>(scores, output_);
    multiply_probabilities_values(scores);
    if constexpr (Traced<Config>) trace_output(scores, softmax_before, block);
  }

  __device__ __forceinline__ void multiply_queries_keys(Scores& scores) {
    const auto query_addresses = query_addresses_.parts();
    const auto key_addresses = key_addresses_.parts();
    const auto load_queries = [&](QuerySlice& slice, int i) {
      load_query_slice(slice, query_addresses, i);
    };
    const auto load_keys = [&](KeySlice& slice, int i) {
#pragma unroll
      for (int tile = 0; tile < kKeyTiles; ++tile)
        ptx::ldmatrix_x4(slice.keys[tile], key_addresses(tile, i));
    };
    KeyStream keys;
    if constexpr (!QueryStream::kResident) queries_.start(load_queries);
    keys.start(load_keys);
#pragma unroll
    for (auto& row_tile : scores)
#pragma unroll
      for (auto& tile : row_tile)
#pragma unroll
        for (float& score : tile) score = 0;
#pragma unroll
    for (int i = 0; i < kHeadTiles; ++i) {
      if constexpr (!QueryStream::kResident)
        queries_.advance(i, load_queries, scores[0][0][0], query_addresses.part[0]);
      keys.advance(i, load_keys, scores[0][0][0], key_addresses.part[0]);
#pragma unroll
      for (int tile = 0; tile < kKeyTiles; ++tile) {
        const Fragment& key = keys[i].keys[tile];  // two times 8 keys, each of two times 8 columns
#pragma unroll
        for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
          const Fragment& query = queries_[i].rows[row_tile];
          ptx::mma_m16n8k16<Element>(scores[row_tile][2 * tile], query, key[0], key[1]);
          ptx::mma_m16n8k16<Element>(scores[row_tile][2 * tile + 1], query, key[2], key[3]);
        }
      }
    }
  }

  // The probabilities of slice i are made right before their products, so that the exponentials of
  // one slice run while the tensor cores work on another.
  __device__ __forceinline__ void multiply_probabilities_values(Scores& scores) {
    const auto value_addresses = value_addresses_.parts();
    const auto load_values = [&](ValueSlice& slice, int i) {
#pragma unroll
      for (int tile = 0; tile < kHeadTiles; ++tile)
        ptx::ldmatrix_x4_transposed(slice.columns[tile], value_addresses(i, tile));
    };
    ValueStream values;
    values.start(load_values);
#pragma unroll
    for (int i = 0; i < kKeyTiles; ++i) {
      values.advance(i, load_values, output_[0][0][0], value_addresses.part[0]);
      Fragment probabilities[kRowTiles];
#pragma unroll
      for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
        float (&left)[4] = scores[row_tile][2 * i], (&right)[4] = scores[row_tile][2 * i + 1];
        softmax_.exponentiate(left, right, row_tile);
        Fragment& fragment = probabilities[row_tile];
        fragment[0] = ptx::pack<Element>(left[0], left[1]);
        fragment[1] = ptx::pack<Element>(left[2], left[3]);
        fragment[2] = ptx::pack<Element>(right[0], right[1]);
        fragment[3] = ptx::pack<Element>(right[2], right[3]);
      }
#pragma unroll
      for (int tile = 0; tile < kHeadTiles; ++tile) {
        const Fragment& value =
            values[i].columns[tile];  // two times 8 columns, each of two times 8 keys
#pragma unroll
        for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
          Output& o = output_;
          ptx::mma_m16n8k16<Element>(o[row_tile][2 * tile], probabilities[row_tile], value[0],
                                     value[1]);
          ptx::mma_m16n8k16<Element>(o[row_tile][2 * tile + 1], probabilities[row_tile], value[2],
                                     value[3]);
        }
      }
    }
  }

  // Scores of keys that a row does not see become -inf.
  __device__ __forceinline__ void mask(Scores& scores, int block) const {
#pragma unroll
    for (int row = 0; row < 2 * kRowTiles; ++row) {
      const int seen = keys_seen_ - block * Config::B_c + (Config::causal ? row * 8 : 0);
#pragma unroll
      for (int tile = 0; tile < Config::B_c / 8; ++tile)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (tile * 8 + i >= seen) scores[row / 2][tile][row % 2 * 2 + i] = -kInfinity;
    }
  }

  // Only the last block of keys reaches past the end, and it is the first one walked.
  template <bool kBounded>
  __device__ __forceinline__ void request_keys(int block) {
    if (!kBounded) keys_.step_back();
    keys_.template request<kBounded>(work_.seq_len_k - block * Config::B_c);
  }

  template <bool kBounded>
  __device__ __forceinline__ void request_values(int block) {
    if (!kBounded) values_.step_back();
    values_.template request<kBounded>(work_.seq_len_k - block * Config::B_c);
  }

  __device__ __forceinline__ void load_queries() {
    const TileCopy<Config, Config::B_r> queries(shared_ + kTileQ,
                                                args_.q.template as<const Element>() +
                                                    work_.batch * args_.q.stride[0] +
                                                    work_.head * args_.q.stride[2],
                                                args_.q.stride[1], work_.first_row);
    queries.template request<true>(work_.seq_len_q - work_.first_row);
    if (Config::eager_load_blocks) request_keys<true>(work_.key_blocks - 1);
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
    if constexpr (QueryStream::kResident) {
      const auto addresses = query_addresses_.parts();
      queries_.start([&](QuerySlice& slice, int i) { load_query_slice(slice, addresses, i); });
    }
  }

  template <class Addresses>
  __device__ __forceinline__ static void load_query_slice(QuerySlice& slice,
                                                          const Addresses& addresses, int i) {
#pragma unroll
    for (int row_tile = 0; row_tile < kRowTiles; ++row_tile)
      ptx::ldmatrix_x4(slice.rows[row_tile], addresses(row_tile, i));
  }

  __device__ __forceinline__ void store_log_sum_exp(const Work<Config>& work) const {
    if (args_.lse.data == nullptr || work.lane % 4 != 0) return;
    float* lse = args_.lse.template as<float>() + work.batch * args_.lse.stride[0] +
                 work.head * args_.lse.stride[1];
#pragma unroll
    for (int row = 0; row < 2 * kRowTiles; ++row)
      if (work.query_row(row) < work.seq_len_q)
        lse[work.query_row(row) * args_.lse.stride[2]] = softmax_.log_sum_exp(row);
  }

  // O = (P V) / l, in the warp's own rows of Q's tile, and from there in whole chunks.
  __device__ __forceinline__ void store_output(const Work<Config>& work) const {
#pragma unroll
    for (int row = 0; row < 2 * kRowTiles; ++row) {
      const float factor = softmax_.normalizer(row);
#pragma unroll
      for (int tile = 0; tile < Config::d_head / 8; ++tile) {
        const float* values = &output_[row / 2][tile][row % 2 * 2];
        ptx::store_shared(
            shared_ + kTileQ + Layout::offset(work.local_row(row), tile) + work.lane % 4 * 4,
            ptx::pack<Element>(values[0] * factor, values[1] * factor));
      }
    }
    __syncwarp();
    Element* output = args_.o.template as<Element>() + work.batch * args_.o.stride[0] +
                      work.head * args_.o.stride[2] + work.lane % Layout::kChunks * 8;
    constexpr int kPassRows = 32 / Layout::kChunks;
#pragma unroll
    for (int pass = 0; pass < kRowsPerWarp; pass += kPassRows) {
      const int row = work.warp_row + pass + work.lane / Layout::kChunks;
      if (work.first_row + row < work.seq_len_q)
        *reinterpret_cast<uint4*>(output + (work.first_row + row) * args_.o.stride[1]) =
            ptx::load_shared_16(shared_ + kTileQ +
                                Layout::offset(row, work.lane % Layout::kChunks));
    }
  }

  __device__ void trace_scores(const Scores& scores, int block) const {
    using Record = typename Trace<Config>::Record;
    const Trace<Config> trace(args_, work_, block);
    trace.tile(Record::kQ, shared_ + kTileQ, Config::B_r);
    trace.tile(Record::kK, shared_ + kTileK, Config::B_c);
    trace.accumulators(Record::kScores, scores);
  }

  __device__ void trace_output(const Scores& probabilities, const Softmax& before,
                               int block) const {
    using Record = typename Trace<Config>::Record;
    const Trace<Config> trace(args_, work_, block);
    trace.tile(Record::kV, shared_ + kTileV, Config::B_c);
    trace.template accumulators<true>(Record::kProbabilities, probabilities);
    trace.accumulators(Record::kOutput, output_);
    for (int row = 0; row < 2 * kRowTiles; ++row) {
      trace.row(Record::kMaximum, row, softmax_.maximum(row), -kInfinity);
      trace.row(Record::kSum, row, softmax_.sum(row), 0);
      trace.row(Record::kRescale, row, softmax_.rescaled_since(before, row), 0);
    }
  }

  const Args& args_;
  const Work<Config> work_;
  const int keys_seen_;  // by the lane's first row, counted from the lane's first column
  const std::uint32_t shared_;
  const FragmentAddresses<Layout, Config::swizzled, Quarters::kDown> query_addresses_,
      value_addresses_;
  const FragmentAddresses<Layout, Config::swizzled, Quarters::kAcross> key_addresses_;
  TileCopy<Config, Config::B_c> keys_, values_;
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
