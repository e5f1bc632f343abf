// The pipeline of keys and values from global to shared memory, which has room for one block of
// each.
#pragma once

#include <cstdint>

#include "attention/flash_forward/sm80_work.cuh"
#include "attention/sm80_tiles.cuh"

namespace kernelmint::flash_forward::sm80 {

using namespace attention::sm80;

// The blocks of keys and values, from the last to the first, on one of two schedules. Eager
// (eager_load_blocks), a block is prefetched as soon as its place is free: V while S is made, the
// next K during the rest of the step. Otherwise a block is requested when it is waited for.
//
// kFirst says that `block` is the first one walked: only the last block reaches past the end.
template <class Config>
class KeyValuePipeline {
  using Element = typename Config::dtype;

 public:
  // `keys` and `values` are the tiles in shared memory.
  __device__ KeyValuePipeline(const typename Config::Args& args, const Work<Config>& work,
                              std::uint32_t keys, std::uint32_t values)
      : seq_len_k_(work.seq_len_k),
        key_blocks_(work.key_blocks),
        keys_(keys, args.k.template at<const Element>(work.batch, 0, work.kv_head),
              args.k.stride[1], (work.key_blocks - 1) * Config::B_c),
        values_(values, args.v.template at<const Element>(work.batch, 0, work.kv_head),
                args.v.stride[1], (work.key_blocks - 1) * Config::B_c) {}

  // Before the first step.
  __device__ __forceinline__ void prefetch_first_keys() {
    if (Config::eager_load_blocks) request<true>(keys_, key_blocks_ - 1);
  }

  // On return K of `block` is there, and all warps are done with the previous V.
  template <bool kFirst>
  __device__ __forceinline__ void wait_for_keys(int block) {
    if (!Config::eager_load_blocks) request<kFirst>(keys_, block);
    wait_for_tiles<Config>();
  }
  template <bool kFirst>
  __device__ __forceinline__ void prefetch_values(int block) {
    if (Config::eager_load_blocks) request<kFirst>(values_, block);
  }

  // On return V of `block` is there, and all warps are done with its K.
  template <bool kFirst>
  __device__ __forceinline__ void wait_for_values(int block) {
    if (!Config::eager_load_blocks) request<kFirst>(values_, block);
    wait_for_tiles<Config>();
  }
  __device__ __forceinline__ void prefetch_next_keys(int block) {
    if (Config::eager_load_blocks && block > 0) request<false>(keys_, block - 1);
  }

 private:
  template <bool kFirst>
  __device__ __forceinline__ void request(TileCopy<Config, Config::B_c>& tiles, int block) const {
    if (!kFirst) tiles.step_back();
    tiles.template request<kFirst>(seq_len_k_ - block * Config::B_c);
  }

  const int seq_len_k_, key_blocks_;
  TileCopy<Config, Config::B_c> keys_, values_;
};

}  // namespace kernelmint::flash_forward::sm80
