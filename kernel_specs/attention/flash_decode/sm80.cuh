// Attention of few queries over a cache, bound by the memory's rate of keys and values. Persistent
// thread blocks take a share of all keys each (sm80_scheduler.cuh), head after head, and always
// have the next steps on their way. A warp takes 16 keys of a step at a time and keeps its own
// online softmax and output, so that within a head no warp waits for another. At the end of a head
// its warps are combined. If several thread blocks share a head (split keys), each stores its part,
// and the last one combines them in their order: results are the same to the last bit, whichever
// comes last. Small caches on devices that have clusters are cut by heads: each head is a
// cluster's, whose blocks pass their parts to each other's shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "attention/flash_decode/sm80_scheduler.cuh"
#include "attention/flash_decode/sm80_tickets.cuh"
#include "attention/hidden_values.cuh"
#include "attention/pages.cuh"
#include "attention/softcap.cuh"
#include "cuda_launch.cuh"
#include "dtypes.h"
#include "integers.h"
#include "ptx/atomic.cuh"
#include "ptx/cluster.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/math.cuh"
#include "ptx/mma.cuh"
#include "ptx/shared_memory.cuh"

namespace kernelmint::flash_decode::sm80 {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

// A head's rows, which the blocks of a cluster pass to each other in the shared memory of each.
template <int kD>
struct Exchange {
  static constexpr int kBlocks = 1 << kMostClusterBits;
  float4 outputs[kBlockRows * kD / 4 + kBlocks];  // [blocks][share]
  float2 statistics[kBlocks][kBlockRows];         // maximum and sum
};

// 2^(a - b), 0 if nothing was seen at all.
__device__ __forceinline__ float weight(float a, float b) {
  return ptx::exp2(a - (b == -INFINITY ? 0.0f : b));
}

// `kAlike`: all caches hold the same number of keys, so that the host has made the list.
template <class Config, bool kAlike>
class Decode {
  using T = typename Config::dtype;
  using Problem = sm80::Problem<typename Config::Args>;
  static constexpr int kD = Config::d_head, kKeys = Config::B_c, kWarps = Config::n_warps;
  static constexpr int kThreads = Config::threads, kStages = Config::stages;
  static constexpr int kRowBytes = 2 * kD, kTileBytes = kKeys * kRowBytes;
  static constexpr int kChunks = kD / 8;  // chunks of 16 bytes in a row
  static constexpr int kRowsAtOnce = kThreads / kChunks;
  static constexpr int kSlices = kD / 16, kHalfRows = kBlockRows / 2;
  static constexpr int kWeights =
      kWarps * kHalfRows * kD / kBlockRows;  // parts that sums_ has room for weights of
  static_assert(kKeys % kRowsAtOnce == 0, "a step's copies take all threads");

 public:
  __device__ Decode(const Problem& problem, unsigned char* shared)
      : problem_(problem),
        args_(problem.args),
        tiles_(ptx::shared_address(shared)),
        sums_(reinterpret_cast<float*>(shared + 2 * kStages * kTileBytes)),
        queries_(tiles_ + kStages * (2 * kTileBytes) + kWarps * kHalfRows * kD * 4),
        warp_statistics_(reinterpret_cast<float2*>(sums_ + kWarps * kHalfRows * kD +
                                                   kStages * kBlockRows * kD / 2)),
        row_statistics_(warp_statistics_ + kWarps * kBlockRows),
        exchange_(reinterpret_cast<Exchange<kD>*>(shared + Config::smem_bytes)),
        plan_(reinterpret_cast<Plan*>(row_statistics_ + kBlockRows)),
        policy_(problem.evicts_first ? ptx::make_cache_policy<ptx::CachePolicy::kEvictFirst>()
                                     : ptx::make_cache_policy<ptx::CachePolicy::kEvictNormal>()) {}

  // The first steps are requested before all else that there is to do.
  __device__ void run() {
    const Scheduler<Config, kAlike> scheduler(problem_);
    if (blockIdx.x >= scheduler.shares()) return;
    const Cursor start = scheduler.first_of(blockIdx.x);
    Cursor ahead = start;
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) request(ahead, stage);
    if (threadIdx.x == 0) plan_->at = start;
    int free_stage = kStages - 1, stage = 0;
    while (true) {
      __syncthreads();
      if (plan_->at.units_left == 0) return;
      prologue(plan_->at);
      const int end = end_of(problem_, plan_->at);
      if (threadIdx.x == 0) plan_->parts = parts_of(scheduler, plan_->at, end);
      int key = plan_->at.keys.first + plan_->at.step * kKeys;
      for (int steps = end - plan_->at.step; steps > 0; --steps) {
        ptx::cp_async_wait_group<kStages - 2>();
        __syncthreads();
        request(ahead, free_stage);
        if (++free_stage == kStages) free_stage = 0;
        step(stage_at(stage), plan_->at, key);
        if (++stage == kStages) stage = 0;
        key += kKeys;
      }
      epilogue(plan_->at, plan_->parts);
      if (threadIdx.x == 0) advance_to<Config, kAlike>(problem_, plan_->at, end);
    }
  }

  // Runs a launch whose clusters take a head each: this block has an even share of the head's
  // steps.
  __device__ void run_in_cluster() {
    const Cursor at = first_in_cluster<Config>(problem_);
    Cursor ahead = at;
    const auto request_next = [&](int stage) {
      // The first chunk, as chunk() computes it, but not as a sum of a part that all threads share
      // and a part of each thread: nvcc 13.0 takes a part of such an address from a register that
      // nothing writes (docs/decoding.md).
      const std::uint32_t first =
          (stage_at(stage) + own_row() * kRowBytes) ^ ((own_column() ^ (own_row() & 7)) << 4);
      if (ahead.units_left > 0)
        request_keys(ahead, [&](int offset, int i) {
          return (first + offset + i * kRowsAtOnce * kRowBytes) ^ ((i * kRowsAtOnce & 7) << 4);
        });
      ++ahead.step;
      --ahead.units_left;
      ptx::cp_async_commit_group();
    };
    request_queries(at);
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) request_next(stage);
    ptx::cluster_arrive_relaxed();
    prologue(at);
    int free_stage = kStages - 1, stage = 0, key = at.keys.first + at.step * kKeys;
    for (int steps = at.units_left; steps > 0; --steps) {
      ptx::cp_async_wait_group<kStages - 2>();
      __syncthreads();
      request_next(free_stage);
      if (++free_stage == kStages) free_stage = 0;
      step(stage_at(stage), at, key);
      if (++stage == kStages) stage = 0;
      key += kKeys;
    }
    const int rows = min(problem_.rows - at.row_block * kBlockRows, kBlockRows);
    const int rank = static_cast<int>(ptx::cluster_rank());
    ptx::cluster_wait();  // until all blocks run
    pass_on(rows, rank);
    ptx::cluster_arrive();
    ptx::cluster_wait();
    combine_share(at, rows, rank);
  }

 private:
  // The parts of a head's rows that thread blocks, or units, store, and where.
  struct Parts {
    int count = 1, own = 0;  // 1: no other block has keys of this head
    int first_slot = 0, step = 0;
    bool skips = false;  // the first share began with another head, whose part has the slot before
    int* ticket = nullptr;

    __device__ int slot(int part) const { return first_slot + part * step + (part == 0 && skips); }
  };

  // A thread block's place in its work; its threads keep no copy, since registers are short.
  struct Plan {
    Cursor at;
    Parts parts;
    int is_last;
  };

  __device__ Parts parts_of(const Scheduler<Config, kAlike>& scheduler, const Cursor& at,
                            int end) const {
    Parts parts;
    if (at.step == 0 && end == at.keys.steps) return parts;
    const unsigned unit = at.keys.units_before(at.step), units = at.keys.units();
    const unsigned head_begin = scheduler.head_begin(at, unit);
    if (args_.batch_invariant) {
      parts.count = static_cast<int>(units);
      parts.own = static_cast<int>(unit);
      parts.first_slot = static_cast<int>(head_begin);
      parts.step = 1;
      parts.ticket = problem_.tickets + at.batch * problem_.heads +
                     at.kv_head * problem_.row_blocks + at.row_block;
    } else {
      const unsigned first = scheduler.share_of(head_begin);
      parts.count = static_cast<int>(scheduler.share_of(head_begin + units - 1) - first) + 1;
      parts.own = static_cast<int>(blockIdx.x - first);
      parts.first_slot = 2 * static_cast<int>(first);
      parts.step = 2;
      parts.skips = scheduler.begin(first) < head_begin;
      parts.ticket = problem_.tickets + first;
    }
    return parts;
  }

  // The rows of the mma's accumulators that this lane holds.
  __device__ static int lane_row(int half) {
    return static_cast<int>(threadIdx.x) % 32 / 4 + half * kHalfRows;
  }

  // The address of a chunk of a row of a tile: the swizzle spreads a column's chunks over the
  // banks.
  __device__ static std::uint32_t chunk(std::uint32_t tile, int row, int column) {
    return tile + row * kRowBytes + ((column ^ (row & 7)) << 4);
  }

  // Requests the step at `ahead`, if there is one, and moves on.
  __device__ __forceinline__ void request(Cursor& ahead, int stage) {
    if (ahead.units_left > 0) {
      const std::uint32_t at_stage = stage_at(stage);
      request_keys(ahead, [&](int offset, int i) {
        return chunk(at_stage + offset, own_row() + i * kRowsAtOnce, own_column());
      });
      if (ahead.is_new) {
        ahead.is_new = false;
        request_queries(ahead);
      }
      advance<Config, kAlike>(problem_, ahead);
    }
    ptx::cp_async_commit_group();
  }

  __device__ std::uint32_t stage_at(int stage) const { return tiles_ + stage * 2 * kTileBytes; }

  // A thread copies one chunk of each row of a step; its rows are kRowsAtOnce apart.
  __device__ static int own_row() { return static_cast<int>(threadIdx.x) / kChunks; }
  __device__ static int own_column() { return static_cast<int>(threadIdx.x) % kChunks; }

  // Requests the keys and values of a step: `place(offset, i)` is where this thread's chunk of its
  // i-th key or value goes, of a tile at an offset of the stage.
  template <class Place>
  __device__ __forceinline__ void request_keys(const Cursor& at, Place place) {
    const int column = own_column() * 8;
    const bool has_key = column < problem_.key_width, has_value = column < problem_.value_width;
    const int key = at.keys.first + at.step * kKeys + own_row();
    copy<kKeys / kRowsAtOnce>(at, key, args_.k_cache, [&](int i, const T* k, bool exists) {
      read(place(0, i), k + column, exists && has_key);
    });
    copy<kKeys / kRowsAtOnce>(at, key, args_.v_cache, [&](int i, const T* v, bool exists) {
      read(place(kTileBytes, i), v + column, exists && has_value);
    });
  }

  __device__ __forceinline__ void read(std::uint32_t destination, const T* source,
                                       bool exists) const {
    if constexpr (Config::paged)
      ptx::cp_async_16_or_zero(destination, source, exists);
    else
      ptx::cp_async_16_or_zero(destination, source, exists, policy_);
  }

  // Requests a head's queries, with its first step.
  __device__ __forceinline__ void request_queries(const Cursor& at) {
    const std::uint32_t queries = queries_of(at);
#pragma unroll
    for (int first = 0; first < kBlockRows * kChunks; first += kThreads) {
      const int i = first + static_cast<int>(threadIdx.x);
      if (kBlockRows * kChunks % kThreads != 0 && i >= kBlockRows * kChunks) break;
      const int row = i / kChunks, column = i % kChunks;
      const int index = at.row_block * kBlockRows + row;
      const bool exists = index < problem_.rows && column * 8 < problem_.key_width;
      const int existing = exists ? index : 0;
      ptx::cp_async_16_or_zero(
          chunk(queries, row, column),
          args_.q.template at<const T>(at.batch, problem_.query_of(existing),
                                       problem_.head_of(at.kv_head, existing)) +
              (exists ? column * 8 : 0),
          exists);
    }
  }

  __device__ std::uint32_t queries_of(const Cursor& at) const {
    return queries_ + at.heads * (kBlockRows * kRowBytes);
  }

  // Calls `to_shared` for `kRows` rows of a cache, kRowsAtOnce apart, from `key` on.
  template <int kRows, class ToShared>
  __device__ __forceinline__ void copy(const Cursor& at, int key, const ConstTensorView<4>& cache,
                                       ToShared to_shared) {
    if constexpr (Config::paged) {
      const unsigned page_size = static_cast<unsigned>(args_.P);
      const i32* table = args_.block_table.template at<const i32>(at.batch);
      const T* base = cache.template at<const T>(0, 0, at.kv_head);
      // Page ids that are on their way at once. The 16 rows of d 256, unrolled, would spill.
      constexpr int kAtOnce = kRows < 8 ? kRows : 8;
#pragma unroll 1
      for (int first = 0; first < kRows; first += kAtOnce) {
        std::int64_t pages[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const unsigned position = static_cast<unsigned>(key + (first + i) * kRowsAtOnce);
          const unsigned page = position / page_size;
          pages[i] = (position - page * page_size) * cache.stride[1];
          if (static_cast<int>(position) < at.keys.length)
            pages[i] +=
                attention::page_within(__ldg(table + page * args_.block_table.stride[1]), args_.N) *
                cache.stride[0];
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
          to_shared(first + i, base + pages[i], key + (first + i) * kRowsAtOnce < at.keys.length);
      }
    } else {
      const T* base = cache.template at<const T>(at.batch, key, at.kv_head);
#pragma unroll
      for (int i = 0; i < kRows; ++i)
        to_shared(i, base + i * (kRowsAtOnce * cache.stride[1]),
                  key + i * kRowsAtOnce < at.keys.length);
    }
  }

  // Begins a head: the keys that each row sees.
  __device__ __forceinline__ void prologue(const Cursor& at) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      maximum_[half] = -INFINITY;
      sum_[half] = 0;
    }
    // All rows see the keys in between.
    const int last_row = min((at.row_block + 1) * kBlockRows, problem_.rows) - 1;
    all_see_from_ = position(at, last_row) - problem_.window_left;
    all_see_to_ =
        min(at.keys.length, position(at, at.row_block * kBlockRows) + problem_.window_right + 1);
#pragma unroll
    for (auto& tile : output_)
#pragma unroll
      for (float& element : tile) element = 0;
  }

  // The key that a row's query is at.
  __device__ int position(const Cursor& at, int row) const {
    return at.keys.length - static_cast<int>(args_.Sq) + problem_.query_of(row);
  }

  // Products of 16 keys, from `key` on for this lane, become exponents of 2. What is not asked for
  // costs a branch that all threads take.
  __device__ __forceinline__ void scale_scores(float (&scores)[2][4], const Cursor& at,
                                               int key) const {
#pragma unroll
    for (int i = 0; i < 8; ++i)  // rounded, so that the greatest one's exponent is 0
      scores[i / 4][i % 4] = __fmul_rn(scores[i / 4][i % 4], problem_.scale);
    if (problem_.softcap > 0) [[unlikely]] {
      const attention::Softcap capped(problem_.softcap);
#pragma unroll
      for (int i = 0; i < 8; ++i) scores[i / 4][i % 4] = capped(scores[i / 4][i % 4]);
    }
    if (args_.alibi_slopes.data != nullptr) [[unlikely]] {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = at.row_block * kBlockRows + lane_row(half);
        const int head = problem_.head_of(at.kv_head, row);
        const float slope = *args_.alibi_slopes.template at<const float>(at.batch, head) * kLog2E;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int distance = abs(position(at, row) - key - i / 2 * 8 - i % 2);
          scores[i / 2][half * 2 + i % 2] -= slope * static_cast<float>(distance);
        }
      }
    }
  }

  __device__ __forceinline__ void mask_scores(float (&scores)[2][4], const Cursor& at,
                                              int key) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int own = position(at, at.row_block * kBlockRows + lane_row(i / 2));
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const int other = key + tile * 8 + i % 2;
        if (other < own - problem_.window_left || other > own + problem_.window_right ||
            other >= at.keys.length)
          scores[tile][i] = -INFINITY;
      }
    }
  }

  // 0 times a value that is not finite is NaN: of 16 keys that some rows see only in part, from
  // `key` on, rows that see such a value have it added here, and the products find zeros in its
  // place. No other warp reads these values, which lie from row `first` of a tile on.
  __device__ __forceinline__ void take_out_hidden_values(std::uint32_t values, int first,
                                                         const Cursor& at, int key) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    std::uint32_t zeros = 0;  // times 0 a value that is not finite is NaN
#pragma unroll 1
    for (int i = lane; i < 16 * kChunks; i += 32)
      zeros = attention::add_zeros<T>(
          ptx::load_shared_16(chunk(values, first + i / kChunks, i % kChunks)), zeros);
    const float2 both = ptx::unpack<T>(zeros);
    if (!__any_sync(~0u, !attention::is_finite(both.x) || !attention::is_finite(both.y))) return;
#pragma unroll 1
    for (int i = 0; i < 16; ++i) {
#pragma unroll
      for (int tile = 0; tile < kD / 8; ++tile) {
        const float2 pair = ptx::unpack<T>(
            ptx::load_shared_4(chunk(values, first + i, tile) + lane % 4 * sizeof(pair.x)));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int distance = key + i - position(at, at.row_block * kBlockRows + lane_row(half));
          if (distance < -problem_.window_left || distance > problem_.window_right) continue;
          if (!attention::is_finite(pair.x)) output_[tile][2 * half] += pair.x;
          if (!attention::is_finite(pair.y)) output_[tile][2 * half + 1] += pair.y;
        }
      }
    }
    __syncwarp();
#pragma unroll 1
    for (int i = lane; i < 16 * kChunks; i += 32) {
      const std::uint32_t address = chunk(values, first + i / kChunks, i % kChunks);
      ptx::store_shared(address, attention::finite_values<T>(ptx::load_shared_16(address)));
    }
    __syncwarp();
  }

  // The online softmax and both products of a step, for this warp's keys.
  __device__ __forceinline__ void step(std::uint32_t keys, const Cursor& at, int first_key) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const std::uint32_t values = keys + kTileBytes, queries = queries_of(at);
    const bool is_masked = first_key < all_see_from_ || first_key + kKeys > all_see_to_;
#pragma unroll
    for (int group = 0; group < kKeys / 16 / kWarps; ++group) {
      const int row = (group * kWarps + warp) * 16;
      float scores[2][4] = {};
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) {
        std::uint32_t q[4];
        ptx::ldmatrix_x4(q, chunk(queries, lane % 16, slice * 2 + lane / 16));
        std::uint32_t k[4];  // keys 0-7 and 8-15, each by columns 0-7 and 8-15
        ptx::ldmatrix_x4(k, chunk(keys, row + lane / 16 * 8 + lane % 8, slice * 2 + lane / 8 % 2));
        ptx::mma_m16n8k16<T>(scores[0], q, k[0], k[1]);
        ptx::mma_m16n8k16<T>(scores[1], q, k[2], k[3]);
      }
      scale_scores(scores, at, first_key + row + lane % 4 * 2);
      if (is_masked) [[unlikely]]
        mask_scores(scores, at, first_key + row + lane % 4 * 2);
      float rescale[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float greatest = fmaxf(fmaxf(scores[0][2 * half], scores[0][2 * half + 1]),
                               fmaxf(scores[1][2 * half], scores[1][2 * half + 1]));
        greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, 1));
        greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, 2));
        greatest = fmaxf(greatest, maximum_[half]);
        rescale[half] = weight(maximum_[half], greatest);
        maximum_[half] = greatest;
        float added = 0;
#pragma unroll
        for (int tile = 0; tile < 2; ++tile)
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            scores[tile][i] = weight(scores[tile][i], greatest);
            added += scores[tile][i];
          }
        sum_[half] = sum_[half] * rescale[half] + added;
      }
      const std::uint32_t probabilities[4] = {
          ptx::pack<T>(scores[0][0], scores[0][1]), ptx::pack<T>(scores[0][2], scores[0][3]),
          ptx::pack<T>(scores[1][0], scores[1][1]), ptx::pack<T>(scores[1][2], scores[1][3])};
#pragma unroll
      for (auto& tile : output_)
#pragma unroll
        for (int i = 0; i < 4; ++i) tile[i] *= rescale[i / 2];
      if (is_masked && args_.Sq > 1) [[unlikely]]
        take_out_hidden_values(values, row, at, first_key + row);
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) {
        std::uint32_t v[4];  // columns 0-7 and 8-15, each by keys 0-7 and 8-15
        ptx::ldmatrix_x4_transposed(v, chunk(values, row + lane % 16, slice * 2 + lane / 16));
        ptx::mma_m16n8k16<T>(output_[2 * slice], probabilities, v[0], v[1]);
        ptx::mma_m16n8k16<T>(output_[2 * slice + 1], probabilities, v[2], v[3]);
      }
    }
  }

  // Combines the warps of a head, eight rows at a time. `keep(row, column, total, greatest, sum)`
  // takes four columns of a row.
  template <class Keep>
  __device__ __forceinline__ void combine_warps(int rows, Keep keep) {
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum_[half] += __shfl_xor_sync(~0u, sum_[half], 1);
      sum_[half] += __shfl_xor_sync(~0u, sum_[half], 2);
      if (lane % 4 == 0)
        warp_statistics_[warp * kBlockRows + lane_row(half)] = {maximum_[half], sum_[half]};
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (half * kHalfRows >= rows) break;
      float* own = sums_ + (warp * kHalfRows + lane / 4) * kD + lane % 4 * 2;
#pragma unroll
      for (int tile = 0; tile < kD / 8; ++tile)
        *reinterpret_cast<float2*>(own + tile * 8) = {output_[tile][2 * half],
                                                      output_[tile][2 * half + 1]};
      __syncthreads();
      for (int i = thread; i < kHalfRows * kD / 4; i += kThreads) {
        const int row_of_half = i / (kD / 4), column = i % (kD / 4) * 4;
        const int row = half * kHalfRows + row_of_half;
        if (row >= rows) break;
        float greatest = -INFINITY;
#pragma unroll
        for (int w = 0; w < kWarps; ++w)
          greatest = fmaxf(greatest, warp_statistics_[w * kBlockRows + row].x);
        float4 total = {};
        float sum = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
          const float2 of_warp = warp_statistics_[w * kBlockRows + row];
          const float factor = weight(of_warp.x, greatest);
          sum += factor * of_warp.y;
          add(total, factor,
              *reinterpret_cast<const float4*>(sums_ + (w * kHalfRows + row_of_half) * kD +
                                               column));
        }
        keep(row, column, total, greatest, sum);
      }
      __syncthreads();
    }
  }

  // Writes a head's rows, or this block's part of them.
  __device__ void epilogue(const Cursor& at, const Parts& parts) {
    const int rows = min(problem_.rows - at.row_block * kBlockRows, kBlockRows);
    const int kept_rows = min(problem_.rows, kBlockRows);
    combine_warps(rows, [&](int row, int column, float4 total, float greatest, float sum) {
      if (parts.count == 1) {
        write(at, row, column, total, finish_row(at, row, column == 0, greatest, sum));
      } else {
        const std::int64_t kept = std::int64_t{parts.slot(parts.own)} * kept_rows + row;
        __stcg(reinterpret_cast<float4*>(problem_.outputs + kept * kD + column), total);
        if (column == 0) __stcg(problem_.statistics + kept, {greatest, sum});
      }
    });
    if (parts.count > 1 && is_last(parts)) combine(at, rows, parts);
  }

  // Passes this block's part of a head to the blocks of the cluster that combine it.
  __device__ void pass_on(int rows, int rank) {
    const int share = problem_.clusters.share;
    const std::uint32_t outputs = ptx::shared_address(exchange_->outputs + rank * share);
    const std::uint32_t statistics = ptx::shared_address(exchange_->statistics[rank]);
    combine_warps(rows, [&](int row, int column, float4 total, float greatest, float sum) {
      const int group = row * (kD / 4) + column / 4;
      const int block = static_cast<int>(group * problem_.clusters.by_share >> 32);
      const int place = group - block * share;
      ptx::store_cluster(ptx::cluster_address(outputs + place * sizeof(total), block), total);
      // The first of a row that a block gets.
      if (column == 0 || place == 0)
        ptx::store_cluster(ptx::cluster_address(statistics + row * sizeof(float2), block),
                           float2{greatest, sum});
    });
  }

  // Combines this block's share of a head, in the order of the cluster's blocks, and writes it.
  __device__ void combine_share(const Cursor& at, int rows, int rank) {
    const int share = problem_.clusters.share, blocks = 1 << problem_.clusters.bits;
    for (int i = static_cast<int>(threadIdx.x); i < share; i += kThreads) {
      const int group = rank * share + i;
      if (group >= rows * (kD / 4)) break;
      const int row = group / (kD / 4), column = group % (kD / 4) * 4;
      float greatest = -INFINITY, sum = 0;
      float4 total = {};
#pragma unroll 8
      for (int p = 0; p < blocks; ++p) greatest = fmaxf(greatest, exchange_->statistics[p][row].x);
#pragma unroll 8
      for (int p = 0; p < blocks; ++p) {
        const float2 of_part = exchange_->statistics[p][row];
        const float factor = weight(of_part.x, greatest);
        sum += factor * of_part.y;
        add(total, factor, exchange_->outputs[p * share + i]);
      }
      write(at, row, column, total, finish_row(at, row, column == 0, greatest, sum));
    }
  }

  // Returns whether all other parts are there. The ticket then has the value that it had before
  // them.
  __device__ bool is_last(const Parts& parts) {
    __syncthreads();
    if (threadIdx.x == 0) {
      const int before = ptx::atomic_add_acquire_release(parts.ticket, 1);
      const bool is_last = before == parts.count - 1;
      if (is_last) *parts.ticket = 0;
      plan_->is_last = is_last;
    }
    __syncthreads();
    return plan_->is_last != 0;
  }

  // Combines the parts of a head: first all rows' maxima and sums, then the outputs with their
  // weights.
  __device__ void combine(const Cursor& at, int rows, const Parts& parts) {
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int kept_rows = min(problem_.rows, kBlockRows);
    const auto statistics = [&](int part, int row) {
      return part < parts.count
                 ? __ldcg(problem_.statistics + std::int64_t{parts.slot(part)} * kept_rows + row)
                 : float2{-INFINITY, 0};
    };
    const auto output = [&](int part, int row, int column) {
      return __ldcg(reinterpret_cast<const float4*>(
          problem_.outputs + (std::int64_t{parts.slot(part)} * kept_rows + row) * kD + column));
    };
    // The thread's first loads are on their way while the weights are made.
    constexpr int kAhead = 16;
    float4 ahead[kAhead];
    const int first_row = min(thread / (kD / 4), rows - 1), first_column = thread % (kD / 4) * 4;
#pragma unroll
    for (int p = 0; p < kAhead; ++p)
      ahead[p] = output(min(p, parts.count - 1), first_row, first_column);
    for (int row = warp; row < rows; row += kWarps) {
      const float2 first = statistics(lane, row);
      float greatest = first.x;
      for (int p = lane + 32; p < parts.count; p += 32)
        greatest = fmaxf(greatest, statistics(p, row).x);
#pragma unroll
      for (int lanes = 16; lanes > 0; lanes /= 2)
        greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, lanes));
      float factor = weight(first.x, greatest), sum = first.y * factor;
      if (lane < parts.count) sums_[lane * rows + row] = factor;
      for (int p = lane + 32; p < parts.count; p += 32) {
        const float2 of_part = statistics(p, row);
        factor = weight(of_part.x, greatest);
        sum += of_part.y * factor;
        if (p < kWeights) sums_[p * rows + row] = factor;
      }
#pragma unroll
      for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
      factor = finish_row(at, row, lane == 0, greatest, sum);
      if (lane == 0) row_statistics_[row] = {greatest, factor};
    }
    __syncthreads();
    for (int i = thread; i < rows * kD / 4; i += kThreads) {
      const int row = i / (kD / 4), column = i % (kD / 4) * 4;
      float4 total = {};
      const int with_weights = min(parts.count, kWeights);
      int p = 0;
      if (i == thread) {
#pragma unroll
        for (; p < kAhead; ++p)
          if (p < with_weights) add(total, sums_[p * rows + row], ahead[p]);
      }
#pragma unroll 8
      for (; p < with_weights; ++p) add(total, sums_[p * rows + row], output(p, row, column));
      for (; p < parts.count; ++p)
        add(total, weight(statistics(p, row).x, row_statistics_[row].x), output(p, row, column));
      write(at, row, column, total, row_statistics_[row].y);
    }
    __syncthreads();  // `at` may change
  }
  __device__ static void add(float4& total, float factor, float4 output) {
    total.x += factor * output.x;
    total.y += factor * output.y;
    total.z += factor * output.z;
    total.w += factor * output.w;
  }

  // Brings the sink in. Returns the factor of the row's output; 0 if the row sees nothing.
  // `is_writer` writes the log-sum-exp.
  __device__ float finish_row(const Cursor& at, int row, bool is_writer, float greatest,
                              float sum) const {
    const int index = at.row_block * kBlockRows + row;
    const int head = problem_.head_of(at.kv_head, index);
    float factor = 1;
    if (args_.s_aux.data != nullptr) {
      const float sink = static_cast<float>(*args_.s_aux.template at<const T>(head)) * kLog2E;
      const float above = fmaxf(greatest, sink);
      factor = weight(greatest, above);
      sum = sum * factor + weight(sink, above);
      greatest = above;
    }
    if (is_writer && args_.lse.data != nullptr)
      *args_.lse.template at<float>(at.batch, head, problem_.query_of(index)) =
          (greatest + __log2f(sum)) * kLn2;
    return sum == 0 ? 0.0f : factor * ptx::reciprocal(sum);
  }

  __device__ void write(const Cursor& at, int row, int column, float4 total, float factor) const {
    if (column >= args_.Dv) return;
    const int index = at.row_block * kBlockRows + row;
    T* o = args_.o.template at<T>(at.batch, problem_.query_of(index),
                                  problem_.head_of(at.kv_head, index), column);
    *reinterpret_cast<uint2*>(o) = {ptx::pack<T>(total.x * factor, total.y * factor),
                                    ptx::pack<T>(total.z * factor, total.w * factor)};
  }

  const Problem& problem_;
  const typename Config::Args& args_;
  const std::uint32_t tiles_;
  // [kWarps][kHalfRows][kD]: outputs that are added up; or parts' weights.
  float* const sums_;
  const std::uint32_t queries_;    // [kStages][kBlockRows][kD], of heads that are on their way
  float2* const warp_statistics_;  // [kWarps][kBlockRows]: maximum and sum
  float2* const row_statistics_;   // [kBlockRows]: the maximum and the output's factor
  Exchange<kD>* const exchange_;   // after all else, of launches in clusters
  Plan* const plan_;
  const std::uint64_t policy_;
  float output_[kD / 8][4];
  float maximum_[2], sum_[2];
  int all_see_from_, all_see_to_;
};

template <class Config, bool kAlike>
__global__ void __launch_bounds__(Config::threads, Config::resident_blocks)
    flash_decode_sm80(const __grid_constant__ Problem<typename Config::Args> problem) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  Decode<Config, kAlike>(problem, shared_memory).run();
}

// By clusters, each for a head. For compute capability 8 it has no code.
template <class Config>
__global__ void __launch_bounds__(Config::threads, Config::resident_blocks)
    flash_decode_sm80_in_clusters(const __grid_constant__ Problem<typename Config::Args> problem) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  Decode<Config, false>(problem, shared_memory).run_in_cluster();
#endif
}

}  // namespace kernelmint::flash_decode::sm80

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using namespace flash_decode::sm80;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  if (args.B == 0 || args.Sq == 0 || args.H == 0) return {};
  const DeviceScope device(context.device);
  if (device.error != nullptr) return {device.error};
  const auto reach = [](i32 keys) { return keys < 0 || keys > kFarthest ? kFarthest : keys; };
  const std::int64_t group = args.H / args.Hk, rows_of_head = args.Sq * group;
  const std::int64_t heads = args.Hk * ceil_div(rows_of_head, kBlockRows),
                     all_heads = args.B * heads;
  const std::int64_t steps =
      larger(ceil_div(Config::paged ? args.pages * args.P : args.P, std::int64_t{Config::B_c}), 1);
  if (all_heads * kMostUnits > kMostListed)
    return {.error = "the list of what there is to do would be too long: split the batch",
            .argument = "B",
            .value = args.B,
            .least = 1,
            .most = kMostListed / kMostUnits / heads};
  // The number of shares for each head, or of heads for each share, if nearly all thread blocks
  // have work.
  const auto whole_heads = [&](std::int64_t shares) {
    std::int64_t even = shares / all_heads * all_heads;
    if (shares < all_heads) even = ceil_div(all_heads, ceil_div(all_heads, shares));
    const bool is_whole = shares >= all_heads || all_heads % even == 0;
    return static_cast<int>(is_whole && 8 * even >= 7 * shares ? even : shares);
  };
  // A cache that is read once leaves L2's content there, if little of that content has to go in any
  // case.
  const std::int64_t bytes = args.B * args.P * args.Hk * (args.D + args.Dv) * 2;
  const std::int64_t little = (all_heads > context.facts.sm_count ? 256 : 160) << 20;
  const bool evicts_first = !Config::paged && rows_of_head <= kBlockRows && bytes <= little;
  const std::int64_t thread_blocks =
      smaller(smaller(all_heads * steps, context.facts.sm_count * Config::resident_blocks),
              kMostThreadBlocks);
  Problem<typename Config::Args> problem{
      .alike = {},
      .key_width = static_cast<int>(args.D),
      .value_width = static_cast<int>(args.Dv),
      .row_blocks = static_cast<int>(ceil_div(rows_of_head, kBlockRows)),
      .kv_heads = static_cast<int>(args.Hk),
      .heads = static_cast<int>(heads),
      .rows = static_cast<int>(rows_of_head),
      .group = static_cast<int>(group),
      .evicts_first = evicts_first,
      .group_reciprocal = ceil_div(std::uint64_t{1} << 32, static_cast<std::uint64_t>(group)),
      .args = args,
      .unit = static_cast<int>(ceil_div(all_heads * steps, std::int64_t{kMostAlike - 1})),
      .few_shares = whole_heads(smaller(thread_blocks, context.facts.sm_count)),
      .many_shares = whole_heads(thread_blocks),
      .window_left = reach(args.window_left),
      .window_right = reach(args.window_right),
      .scale = args.softmax_scale * kLog2E,
      .softcap = attention::usable_cap(args.softcap * kLog2E)};
  if (args.N == 0) problem.args.pages = 0;  // a table cannot name any
  if (args.batch_invariant) problem.few_shares = problem.many_shares;
  bool is_alike = false;
  if constexpr (!Config::paged) {
    if (args.seqused_k.data == nullptr && args.leftpad_k.data == nullptr)
      is_alike = make_list<Config>(problem, args.B);
    CudaLaunch how = {.grid = {},
                      .block = {Config::threads},
                      .shared_memory = Config::smem_bytes + sizeof(Exchange<Config::d_head>)};
    constexpr auto* kInClusters = &flash_decode_sm80_in_clusters<Config>;
    const auto resident = [&](const CudaLaunch& launch) {
      return resident_clusters<kInClusters>(launch, context);
    };
    if (!args.batch_invariant && make_clusters<Config>(problem, args.B, is_alike, how, resident))
      return launch_cuda<kInClusters>(how, context, problem);
  }
  // The greatest possible number of parts: by units, or by thread blocks, two of each.
  const std::int64_t parts =
      args.batch_invariant ? all_heads * smaller(steps, kMostUnits) : 2 * thread_blocks;
  const std::int64_t rows = parts * smaller(problem.rows, kBlockRows);
  const Allocation kept =
      context.allocate(rows * (Config::d_head * sizeof(float) + sizeof(float2)));
  if (kept.error != nullptr) return {kept.error};
  problem.outputs = static_cast<float*>(kept.data);
  problem.statistics = reinterpret_cast<float2*>(problem.outputs + rows * Config::d_head);
  const auto stream = static_cast<cudaStream_t>(context.stream);
  cudaError_t status = cudaSuccess;
  if (args.batch_invariant) {  // a ticket for each head, however many there are
    const Allocation tickets = context.allocate(all_heads * sizeof(int));
    if (tickets.error != nullptr) return {tickets.error};
    problem.tickets = static_cast<int*>(tickets.data);
    status = cudaMemsetAsync(problem.tickets, 0, all_heads * sizeof(int), stream);
  } else {
    status = Tickets::of_device(context.device).find(stream, problem.tickets);
  }
  if (status != cudaSuccess) return {cudaGetErrorString(status)};
  const CudaLaunch how = {
      .grid = {thread_blocks}, .block = {Config::threads}, .shared_memory = Config::smem_bytes};
  if constexpr (!Config::paged) {
    if (is_alike) return launch_cuda<&flash_decode_sm80<Config, true>>(how, context, problem);
  }
  return launch_cuda<&flash_decode_sm80<Config, false>>(how, context, problem);
}

}  // namespace kernelmint
