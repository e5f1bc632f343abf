// The epilogue: normalises a warpgroup's slab of the output and stores it, and the log-sum-exp.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention/dropout.cuh"
#include "attention/hidden_values.cuh"
#include "attention/pages.cuh"
#include "attention/prefill_scores.cuh"
#include "attention/sm90a_prefill_tile.cuh"
#include "attention/softmax.cuh"
#include "ptx/math.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/special_registers.cuh"
#include "register_tile.cuh"

namespace kernelmint::flash_prefill::sm90a {

// A row of the output, of the keys that it sees, one by one, by one warp: where a value that is not
// finite may have reached rows that do not see it. Seldom called: its loops stay small.
template <class Config>
class Remake {
  using Element = typename Config::dtype;
  using Args = typename Config::Args;
  static constexpr int kLaneColumns = Config::d_head / 32;

 public:
  __device__ Remake(const Args& args, std::uint32_t slot)
      : args_(args),
        tile_(load_tile<0, 4>(slot)),
        seen_(args, tile_),
        lane_(ptx::reread_thread_index() % 32) {}

  // Writes the 16 rows from `first_query` on, as far as they exist.
  __device__ void rows(int first_query) const {
#pragma unroll 1
    for (int i = 0; i < 16 && first_query + i < tile_.queries; ++i) row(first_query + i);
  }

 private:
  __device__ void row(int query) const {
    const Element* q =
        args_.q.template at<const Element>(tile_.entry, tile_.first_row + query, tile_.head);
    float maximum = kNoMaximum, sum = 0, output[kLaneColumns] = {};
    const int behind = seen_.behind(query);
#pragma unroll 1
    for (int first = seen_.first(query); first < behind; first += 32) {
      const float score = first + lane_ < behind ? score_of(q, query, first + lane_) : -kInfinity;
      add_keys<Element>(
          maximum, sum, output, score, fmaxf(maximum, warp_max(score)), kLog2E, first, behind,
          [&](int key, const auto& add) {
            const Element* v = row_of(args_.v, key);
            const float share = share_of(query, key);
            unroll<kLaneColumns>([&](int i) {
              if (lane_ + 32 * i >= args_.Dv) return;
              if constexpr (DropsOut<Args>)
                add(i, static_cast<Element>(share * static_cast<float>(v[lane_ + 32 * i])));
              else
                add(i, v[lane_ + 32 * i]);
            });
          });
    }
    for (int distance = 1; distance < 32; distance *= 2) sum += __shfl_xor_sync(~0u, sum, distance);
    if (args_.s_aux.data != nullptr) {
      const float sink = static_cast<float>(*args_.s_aux.template at<const Element>(tile_.head));
      const float greatest = fmaxf(maximum, sink);
      const float rescale = ptx::exp2((maximum - greatest) * kLog2E);
      sum = sum * rescale + ptx::exp2((sink - greatest) * kLog2E);
      unroll<kLaneColumns>([&](int i) { output[i] *= rescale; });
    }
    float normalizer = sum == 0 ? 0.f : __frcp_rn(sum);
    if constexpr (DropsOut<Args>) normalizer *= keep_scale(args_.dropout_p);
    Element* o = args_.o.template at<Element>(tile_.entry, tile_.first_row + query, tile_.head);
    unroll<kLaneColumns>([&](int i) {
      if (lane_ + 32 * i < args_.Dv)
        o[lane_ + 32 * i] = static_cast<Element>(sum == 0 ? 0.f : output[i] * normalizer);
    });
  }

  // 0 if a key's probability is dropped.
  __device__ float share_of(int query, int key) const {
    if constexpr (DropsOut<Args>) {
      const DropoutHead head = dropout_of(args_, tile_.sequence, tile_.head);
      if (!is_kept(head, drop_threshold(args_.dropout_p), query, key)) return 0;
    }
    return 1;
  }

  __device__ static float warp_max(float x) {
    for (int distance = 1; distance < 32; distance *= 2)
      x = fmaxf(x, __shfl_xor_sync(~0u, x, distance));
    return x;
  }

  // The row of a key, or of its value.
  __device__ const Element* row_of(const ConstTensorView<4>& view, int key) const {
    if (args_.block_table.data == nullptr)
      return view.template at<const Element>(tile_.key_entry, tile_.first_key + key, tile_.kv_head);
    const int size = static_cast<int>(args_.Tk), page = key / size;
    return view.template at<const Element>(
        page_within(*args_.block_table.template at<const i32>(tile_.sequence, page), args_.Nk),
        key - page * size, tile_.kv_head);
  }

  __device__ float score_of(const Element* q, int query, int key) const {
    const Element* k = row_of(args_.k, key);
    float score = 0;
#pragma unroll 1
    for (int i = 0; i < args_.D; ++i)
      score = fmaf(static_cast<float>(q[i]), static_cast<float>(k[i]), score);
    score *= args_.softmax_scale;
    if (args_.softcap > 0) score = args_.softcap * tanhf(score / args_.softcap);
    if (args_.alibi_slopes.data != nullptr)
      score -= *args_.alibi_slopes.template at<const float>(tile_.sequence, tile_.head) *
               static_cast<float>(abs(seen_.own_key(query) - key));
    return score;
  }

  const Args& args_;
  const Announced tile_;
  const Seen seen_;
  const int lane_;
};

template <class Config>
class Epilogue {
  using Element = typename Config::dtype;
  using Args = typename Config::Args;
  using Rows = RegisterTile<16, 8>;

 public:
  __device__ Epilogue(const Args& args, std::uint32_t slot, int warpgroup)
      : args_(args),
        slot_(slot),
        first_row_(warpgroup * kSlabRows + ptx::reread_thread_index() % 128 / 32 * 16) {}

  // Rows that see no key, and rows after the sequence's queries, are zero.
  template <class Output, class Softmax>
  __device__ __forceinline__ void store(Output& output, Softmax softmax) const {
    const Announced tile = load_tile<0, 3>(slot_);
    softmax.reduce();
    if (args_.s_aux.data != nullptr) add_sink<Element>(softmax, output, args_, tile.head);
    store_log_sum_exp(tile, softmax);
    const int column = threadIdx.x % 4 * 8;
    Element* o = args_.o.template at<Element>(tile.entry, tile.first_row + query_of(tile, 0),
                                              tile.head, column);
    normalise(tile, output, softmax);
    FiniteCheck<Element> check;
    // Some of a row at a time: one exchange between lanes hides the latency of another.
    constexpr int kGroup = std::min(Output::kColumns / 32, 4);
    unroll<Output::kLaneRows>([&](int row) {
      unroll<Output::kColumns / 32 / kGroup>([&](int group) {
        std::uint32_t chunks[kGroup][4];
        unroll<kGroup>([&](int i) {
          unroll<4>([&](int j) {
            chunks[i][j] = output.template packed_pair<Element>(row, 4 * (kGroup * group + i) + j);
          });
          transpose_quad(chunks[i]);
          unroll<4>([&](int j) { check.look_at(j, chunks[i][j]); });
        });
        if (query_of(tile, row) >= tile.rows) return;
        Element* columns = o + Rows::row_of(row) * args_.o.stride[1] + kGroup * group * 32;
        unroll<kGroup>([&](int i) {
          if (column + (kGroup * group + i) * 32 < args_.Dv)
            *reinterpret_cast<uint4*>(columns + i * 32) =
                uint4{chunks[i][0], chunks[i][1], chunks[i][2], chunks[i][3]};
        });
      });
    });
    if (check.fails()) [[unlikely]] {
      __syncwarp();
      Remake<Config>(args_, slot_).rows(tile.first_query + first_row_);
      // An instruction that takes whole warps. Without it ptxas holds that the loops above may
      // leave the warp's threads apart, and pays for that in every step of the mainloop. None of
      // wgmma's: these take the whole warpgroup, whose other warps may not come here.
      std::uint32_t unused[4];
      ptx::ldmatrix_x4(unused, slot_);
    }
  }

 private:
  template <class Output, class Softmax>
  __device__ __forceinline__ void normalise(const Announced& tile, Output& output,
                                            const Softmax& softmax) const {
    // flash_forward's factor: OnlineSoftmax's normalizer has branches for extreme sums.
    const auto factor_of = [&](int row) {
      const float sum = softmax.row(row).sum;
      const float factor =
          sum == 0 || query_of(tile, row) >= tile.queries ? 0.f : ptx::reciprocal(sum);
      if constexpr (DropsOut<Args>) return factor * keep_scale(args_.dropout_p);
      return factor;
    };
    const float factors[] = {factor_of(0), factor_of(1)};
    if (__any_sync(~0u, factors[0] == 0 || factors[1] == 0))
      unroll<2>([&](int row) {
        if (factors[row] == 0) output.for_each(row, [](float& value) { value = 0; });
      });
    unroll<2>([&](int row) { output.for_each(row, [&](float& value) { value *= factors[row]; }); });
  }

  template <class Softmax>
  __device__ __forceinline__ void store_log_sum_exp(const Announced& tile,
                                                    const Softmax& softmax) const {
    if (args_.lse.data == nullptr || threadIdx.x % 4 != 0) return;
    float* lse = args_.lse.template at<float>(tile.entry, tile.head, tile.first_row);
    unroll<2>([&](int row) {
      const int query = query_of(tile, row);
      if (query < tile.rows)
        lse[query * args_.lse.stride[2]] =
            query < tile.queries ? softmax.log_sum_exp(row) : -kInfinity;
    });
  }

  __device__ __forceinline__ int query_of(const Announced& tile, int row) const {
    return tile.first_query + first_row_ + Rows::first_row(threadIdx.x % 32) + Rows::row_of(row);
  }

  const Args& args_;
  const std::uint32_t slot_;  // where the tile is announced
  const int first_row_;       // the warp's first row in the tile
};

}  // namespace kernelmint::flash_prefill::sm90a
