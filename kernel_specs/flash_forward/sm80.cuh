// Attention forward for compute capability 8.0 and later: FlashAttention-2 (Dao, 2023) on mma.sync.
// A block of threads owns B_r query rows of one head and walks the key blocks of B_c rows from the
// last to the first, so that the blocks that need masks come first. Scores, probabilities and
// output stay in registers; each warp owns whole rows, so that no reduction crosses warps.
#pragma once

#include <cstdint>

#include "flash_forward/sm80_softmax.cuh"
#include "flash_forward/sm80_tiles.cuh"
#include "ptx/math.cuh"
#include "ptx/mma.cuh"

namespace kernelmint::flash_forward {
namespace sm80 {

// Which work this block of threads has. Blocks of one head are neighbours, and heads that share
// keys and values too; under a causal mask the longest rows start first.
template <class Config>
struct Work {
  int batch, head, kv_head;
  int first_row;  // of the B_r query rows
  int seq_len_q, seq_len_k;
  int causal_shift;     // row i sees keys up to i + causal_shift (aligned bottom-right)
  int key_blocks;       // as many as some row sees; the last may be partly out of range
  int unmasked_blocks;  // the first of them: seen whole by every row

  __device__ explicit Work(const typename Config::Args& args)
      : seq_len_q(static_cast<int>(args.Sq)),
        seq_len_k(static_cast<int>(args.Sk)),
        causal_shift(seq_len_k - seq_len_q) {
    const unsigned row_blocks = (seq_len_q + Config::B_r - 1) / Config::B_r;
    const unsigned heads = static_cast<unsigned>(args.H);
    const unsigned batch_and_head = blockIdx.x / row_blocks;
    const unsigned row_block = blockIdx.x % row_blocks;
    first_row = (Config::causal ? row_blocks - 1 - row_block : row_block) * Config::B_r;
    batch = batch_and_head / heads;
    head = batch_and_head % heads;
    kv_head = head / (heads / static_cast<unsigned>(args.Hk));
    key_blocks =
        (keys_seen(min(first_row + Config::B_r, seq_len_q) - 1) + Config::B_c - 1) / Config::B_c;
    unmasked_blocks = keys_seen(first_row) / Config::B_c;
  }

  __device__ int keys_seen(int row) const {
    return Config::causal ? max(0, min(seq_len_k, row + 1 + causal_shift)) : seq_len_k;
  }
};

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

  using Scores = float[kRowTiles][Config::B_c / 8][4];
  using Output = float[kRowTiles][Config::d_head / 8][4];
  struct QuerySlice {
    Fragment rows[kRowTiles];
  };  // 16 columns of Q, this warp's rows
  struct KeySlice {
    Fragment keys[kKeyTiles];
  };  // 16 columns of K, all keys
  struct ValueSlice {
    Fragment columns[kHeadTiles];
  };  // 16 keys of V, all columns
  template <class Slice, int kSlices, int kPerLoad>
  using Stream = FragmentStream<Slice, kSlices, kPerLoad, Config::mma_double_buffer_loads>;
  using QueryStream = Stream<QuerySlice, kHeadTiles, Config::Q_mma_load_K_tiles>;
  using KeyStream = Stream<KeySlice, kHeadTiles, Config::K_mma_load_K_tiles>;
  using ValueStream = Stream<ValueSlice, kKeyTiles, Config::V_mma_load_K_tiles>;

 public:
  __device__ Forward(const Args& args, std::uint32_t shared)
      : args_(args),
        work_(args),
        lane_(threadIdx.x % 32),
        warp_row_(threadIdx.x / 32 * kRowsPerWarp),
        shared_(shared),
        query_addresses_(shared + kTileQ + warp_row_ * Layout::kRowBytes),
        key_value_addresses_(shared),
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
    store_log_sum_exp();
    store_output();
  }

 private:
  // With a scale of 0 a masked score, -inf, must stay -inf.
  static constexpr float kLeastScale = 1e-30f;

  // One block of keys and values: S = Q K^T, P = softmax(S), O += P V.
  template <bool kFirst, bool kMasked>
  __device__ __forceinline__ void step(int block) {
    if (!Config::eager_load_blocks) request_keys<kFirst>(block);
    wait_for_tiles<Config>();  // K is here, and all warps are done with the previous V
    if (kFirst) prepare_queries();
    if (Config::eager_load_blocks) request_values<kFirst>(block);

    Scores scores;
    multiply_queries_keys(scores);
    if (kMasked && block >= work_.unmasked_blocks) mask(scores, block);

    if (!Config::eager_load_blocks) request_values<kFirst>(block);
    wait_for_tiles<Config>();  // V is here, and all warps are done with K
    if (Config::eager_load_blocks && block > 0) request_keys<false>(block - 1);

    softmax_.template update_maximum<kFirst>(scores, output_);
    multiply_probabilities_values<kMasked>(scores);
  }

  __device__ __forceinline__ void multiply_queries_keys(Scores& scores) {
    const auto load_queries = [&](QuerySlice& slice, int i) { load_query_slice(slice, i); };
    const auto load_keys = [&](KeySlice& slice, int i) {
#pragma unroll
      for (int tile = 0; tile < kKeyTiles; ++tile)
        ptx::ldmatrix_x4(slice.keys[tile], kTileK + key_value_addresses_(tile, i));
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
      if constexpr (!QueryStream::kResident) queries_.advance(i, load_queries);
      keys.advance(i, load_keys);
#pragma unroll
      for (int tile = 0; tile < kKeyTiles; ++tile) {
        const Fragment& key = keys[i].keys[tile];  // two 8-key halves, each of two 8-column halves
#pragma unroll
        for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
          const Fragment& query = queries_[i].rows[row_tile];
          ptx::mma_m16n8k16<Element>(scores[row_tile][2 * tile], query, key[0], key[2]);
          ptx::mma_m16n8k16<Element>(scores[row_tile][2 * tile + 1], query, key[1], key[3]);
        }
      }
    }
  }

  // The probabilities of slice i are made right before their products, so that the exponentials of
  // one slice run while the tensor cores work on another.
  template <bool kMasked>
  __device__ __forceinline__ void multiply_probabilities_values(Scores& scores) {
    const auto load_values = [&](ValueSlice& slice, int i) {
#pragma unroll
      for (int tile = 0; tile < kHeadTiles; ++tile)
        ptx::ldmatrix_x4_transposed(slice.columns[tile], kTileV + key_value_addresses_(i, tile));
    };
    ValueStream values;
    values.start(load_values);
#pragma unroll
    for (int i = 0; i < kKeyTiles; ++i) {
      values.advance(i, load_values);
      Fragment probabilities[kRowTiles];
#pragma unroll
      for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float (&tile)[4] = scores[row_tile][2 * i + half];
          softmax_.template exponentiate<kMasked>(tile, row_tile);
          probabilities[row_tile][2 * half] = ptx::pack<Element>(tile[0], tile[1]);
          probabilities[row_tile][2 * half + 1] = ptx::pack<Element>(tile[2], tile[3]);
        }
      }
#pragma unroll
      for (int tile = 0; tile < kHeadTiles; ++tile) {
        const Fragment& value = values[i].columns[tile];  // two 8-column halves, each of 2 x 8 keys
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
    const int first_key = block * Config::B_c + lane_ % 4 * 2;
#pragma unroll
    for (int row = 0; row < 2 * kRowTiles; ++row) {
      const int seen = work_.keys_seen(query_row(row)) - first_key;
#pragma unroll
      for (int tile = 0; tile < Config::B_c / 8; ++tile)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (tile * 8 + i >= seen) scores[row / 2][tile][row % 2 * 2 + i] = -kInfinity;
    }
  }

  // This lane's rows: two in each tile of 16.
  __device__ int local_row(int row) const { return warp_row_ + row * 8 + lane_ / 4; }
  __device__ int query_row(int row) const { return work_.first_row + local_row(row); }

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
        for (int column = lane_; column < Config::d_head / 2; column += 32) {
          const std::uint32_t address =
              shared_ + kTileQ + (warp_row_ + row) * Layout::kRowBytes + column * 4;
          ptx::store_shared(address, ptx::load_shared_4(address) ^ 0x80008000u);
        }
      __syncwarp();
    }
    if constexpr (QueryStream::kResident)
      queries_.start([&](QuerySlice& slice, int i) { load_query_slice(slice, i); });
  }

  __device__ __forceinline__ void load_query_slice(QuerySlice& slice, int i) const {
#pragma unroll
    for (int row_tile = 0; row_tile < kRowTiles; ++row_tile)
      ptx::ldmatrix_x4(slice.rows[row_tile], query_addresses_(row_tile, i));
  }

  __device__ __forceinline__ void store_log_sum_exp() const {
    if (args_.lse.data == nullptr || lane_ % 4 != 0) return;
    float* lse = args_.lse.template as<float>() + work_.batch * args_.lse.stride[0] +
                 work_.head * args_.lse.stride[1];
#pragma unroll
    for (int row = 0; row < 2 * kRowTiles; ++row)
      if (query_row(row) < work_.seq_len_q)
        lse[query_row(row) * args_.lse.stride[2]] = softmax_.log_sum_exp(row);
  }

  // O = (P V) / l, in the warp's own rows of Q's tile, and from there in whole chunks.
  __device__ __forceinline__ void store_output() const {
#pragma unroll
    for (int row = 0; row < 2 * kRowTiles; ++row) {
      const float factor = softmax_.normalizer(row);
#pragma unroll
      for (int tile = 0; tile < Config::d_head / 8; ++tile) {
        const float* values = &output_[row / 2][tile][row % 2 * 2];
        ptx::store_shared(shared_ + kTileQ + Layout::offset(local_row(row), tile) + lane_ % 4 * 4,
                          ptx::pack<Element>(values[0] * factor, values[1] * factor));
      }
    }
    __syncwarp();
    Element* output = args_.o.template as<Element>() + work_.batch * args_.o.stride[0] +
                      work_.head * args_.o.stride[2] + lane_ % Layout::kChunks * 8;
    constexpr int kPassRows = 32 / Layout::kChunks;
#pragma unroll
    for (int pass = 0; pass < kRowsPerWarp; pass += kPassRows) {
      const int row = warp_row_ + pass + lane_ / Layout::kChunks;
      if (work_.first_row + row < work_.seq_len_q)
        *reinterpret_cast<uint4*>(output + (work_.first_row + row) * args_.o.stride[1]) =
            ptx::load_shared_16(shared_ + kTileQ + Layout::offset(row, lane_ % Layout::kChunks));
    }
  }

  const Args& args_;
  const Work<Config> work_;
  const int lane_, warp_row_;
  const std::uint32_t shared_;
  const FragmentAddresses<Layout, Config::swizzled> query_addresses_, key_value_addresses_;
  TileCopy<Config, Config::B_c> keys_, values_;
  QueryStream queries_;
  OnlineSoftmax<kRowTiles, Config::optimized_softmax> softmax_;
  Output output_;
};

}  // namespace sm80

template <class Config>
__global__ void __launch_bounds__(Config::threads)
    flash_forward_sm80(const __grid_constant__ typename Config::Args args) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  sm80::Forward<Config>(args, ptx::shared_address(shared_memory)).run();
}

}  // namespace kernelmint::flash_forward
