// The sums D and log-sum-exps of rows, beside the products.
#pragma once

#include <cstdint>

#include "attention/backward_product.cuh"
#include "attention/sm90a_backward_shared_memory.cuh"
#include "attention/sm90a_tensor_maps.cuh"
#include "ptx/atomic.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/special_registers.cuh"
#include "ptx/tma.cuh"

namespace kernelmint::attention_backward::sm90a {

// O and dO come in boxes of so many rows by 64 columns, so many of each at a time.
inline constexpr int kRowsOfBox = 32, kBoxes = 4;
inline constexpr int kRowsOfPart = kBoxes * kRowsOfBox;
inline constexpr int kBoxBytes = kRowsOfBox * kPanelRowBytes;
// The bytes of a description, and of all the shared memory that a SumMaker takes, which begins at a
// multiple of 128.
inline constexpr int kDescriptionBytes = 48;  // of a part
inline constexpr int kSumMakerBytes = kBoxes * (2 * kBoxBytes + 8) + kDescriptionBytes + 128;

// A warp that makes rows' values: part after part, in the order in which tiles need them. It waits
// for no tile, so that no tile waits for ever. `Sequences` says which rows a part has: a row of a
// box for each lane.
template <class Config, class Sequences>
class SumMaker {
  using Problem = typename Sequences::Problem;
  using Rows = typename Sequences::Rows;
  static constexpr int kWords = sizeof(Rows) / 16;
  struct Words {
    uint4 at[kWords];
  };
  static_assert(Config::padded_head == 64 && Config::B_r <= kRowsOfPart);
  static_assert(sizeof(Rows) <= kDescriptionBytes && sizeof(Rows) % 16 == 0);

 public:
  __device__ SumMaker(const Problem& problem, std::uint32_t base)
      : problem_(problem), base_((base + 127) / 128 * 128) {}

  // By one thread, before all others go on.
  __device__ void initialise_barriers() const {
    for (int box = 0; box < kBoxes; ++box) ptx::mbarrier_init(full(box), 1);
  }

  __device__ void run() const {
    if (!Sequences::leaves_sums(problem_)) return;
    ptx::wait_for_kernel_ahead();
#pragma unroll 1
    for (unsigned phase = 0; take(); phase ^= 1) {
#pragma unroll 1
      for (int box = 0; box < kBoxes; ++box) load(box);
#pragma unroll 1
      for (int box = 0; box < kBoxes; ++box) {
        ptx::mbarrier_wait(full(box), phase);
        rows().keep(problem_, box * kRowsOfBox + lane(), sum_of_row(box));
      }
      __syncwarp();
      if (lane() == 0) rows().say_done(problem_);
    }
  }

 private:
  // Takes the next part, if there is one, and leaves its description in shared memory, since
  // registers are few.
  __device__ __forceinline__ bool take() const {
    int index = 0;
    if (lane() == 0) index = static_cast<int>(atomicAdd(Sequences::next_sums(problem_), 1u));
    index = __shfl_sync(~0u, index, 0);
    const Rows rows(problem_, index);
    const auto& words = reinterpret_cast<const Words&>(rows);
    if (lane() == 0)
      for (int i = 0; i < kWords; ++i) ptx::store_shared(description() + 16 * i, words.at[i]);
    __syncwarp();
    return rows.exist(problem_);
  }
  __device__ __forceinline__ Rows rows() const {
    Words words;
    for (int i = 0; i < kWords; ++i) words.at[i] = ptx::load_shared_16(description() + 16 * i);
    return reinterpret_cast<const Rows&>(words);
  }

  __device__ __forceinline__ void load(int box) const {
    if (lane() != 0) return;
    const Rows rows = this->rows();
    ptx::mbarrier_arrive_expecting(full(box), 2 * kBoxBytes);
    const auto load = [&](const attention::sm90a::MappedTensor& tensor, std::uint32_t to) {
      ptx::tma_load_4d(to, tensor.map, full(box),
                       ptx::make_cache_policy<ptx::CachePolicy::kEvictNormal>(), 0,
                       rows.row() + box * kRowsOfBox, rows.head() * tensor.head_step,
                       rows.entry() * tensor.batch_step);
    };
    load(problem_.o_rows, outputs(box));
    load(problem_.dout_rows, outputs(box) + kBoxBytes);
  }

  // 16 bytes at a time, each lane at another place of its row.
  __device__ __forceinline__ float sum_of_row(int box) const {
    float sum = 0;
#pragma unroll 2
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t at = outputs(box) + lane() * kPanelRowBytes + (i + lane()) % 8 * 16;
      sum += product<typename Config::dtype>(ptx::load_shared_16(at),
                                             ptx::load_shared_16(at + kBoxBytes));
    }
    return sum;
  }

  // Not kept, since registers are few.
  __device__ __forceinline__ static int lane() {
    return static_cast<int>(ptx::reread_thread_index() % 32);
  }
  __device__ __forceinline__ std::uint32_t outputs(int box) const {
    return base_ + box * 2 * kBoxBytes;
  }
  __device__ __forceinline__ std::uint32_t full(int box) const {
    return base_ + kBoxes * 2 * kBoxBytes + box * 8;
  }
  __device__ __forceinline__ std::uint32_t description() const { return full(kBoxes); }

  const Problem& problem_;
  const std::uint32_t base_;
};

}  // namespace kernelmint::attention_backward::sm90a
