// FlashAttention-2's kernels for splits and caches of keys, one family of which appends to the
// cache: upstream's device code under names that say its key.
#pragma once

#include <src/flash_fwd_kernel.h>

#include "flash_attn/params.cuh"

namespace kernelmint::flash_attn {

template <class Config>
using SplitTraits =
    Flash_fwd_kernel_traits<Config::head_dim, Config::tile_m, Config::tile_n, Config::warps, false,
                            false, Element<typename Config::dtype>>;

template <class Config, bool kAppend, class = Element<typename Config::dtype>>
__global__ void flash_attn_split(const __grid_constant__::flash::Flash_fwd_params params) {
  ::flash::compute_attn_splitkv<SplitTraits<Config>, Config::causal, Config::local, Config::alibi,
                                Config::even_mn, Config::even_k, Config::capped, Config::split,
                                kAppend>(params);
}

// Rows of a thread block that adds up the splits: the fewest that 128 threads read at once.
template <class Config>
constexpr int kCombinedRows = Config::head_dim % 128 == 0  ? 4
                              : Config::head_dim % 64 == 0 ? 8
                                                           : 16;

template <class Config, int kLogSplits, class = Element<typename Config::dtype>>
__global__ void flash_attn_combine(const __grid_constant__::flash::Flash_fwd_params params) {
  ::flash::combine_attn_seqk_parallel<SplitTraits<Config>, kCombinedRows<Config>, kLogSplits,
                                      Config::even_k>(params);
}

// Adds up the splits, by the kernel for the least power of two that is as many.
template <class Config, int kLogSplits = 1>
LaunchResult combine(const CudaLaunch& launch, const LaunchContext& context,
                     const ::flash::Flash_fwd_params& params) {
  if constexpr (kLogSplits < 7)
    if (params.num_splits > 1 << kLogSplits)
      return combine<Config, kLogSplits + 1>(launch, context, params);
  return launch_cuda<&flash_attn_combine<Config, kLogSplits>>(launch, context, params);
}

template <class Config, bool kAppend, class Args>
LaunchResult launch_split(const Args& args, const LaunchContext& context,
                          ::flash::Flash_fwd_params& params) {
  using Traits = SplitTraits<Config>;
  static_assert(Traits::kSmemSize == Config::smem_bytes && Traits::kNThreads == Config::threads);
  fill<Config>(params, args, args.out_, args.softmax_lse.data, /*p_dropout=*/0);
  if (args.cache_seqlens.data != nullptr) {
    params.cu_seqlens_k = pointer<int>(args.cache_seqlens.data);
    params.is_seqlens_k_cumulative = false;
  }
  params.leftpad_k = pointer<int>(args.leftpad_k.data);
  params.cache_batch_idx = pointer<int>(args.cache_batch_idx.data);
  params.block_table = pointer<int>(args.block_table.data);
  params.block_table_batch_stride = args.block_table.stride[0];
  params.page_block_size = params.block_table == nullptr ? 1 : static_cast<int>(args.Sk);
  params.num_splits = static_cast<int>(args.num_splits);

  const std::int64_t tiles = ceil_div(params.seqlen_q, Config::tile_m);
  if constexpr (!Config::split) {
    return launch_cuda<&flash_attn_split<Config, kAppend>>({.grid = {tiles, params.b, params.h},
                                                            .block = {Config::threads},
                                                            .shared_memory = Config::smem_bytes},
                                                           context, params);
  } else {
    params.oaccum_ptr = args.workspace.out_accum;
    params.softmax_lseaccum_ptr = args.workspace.lse_accum;
    const LaunchResult result = launch_cuda<&flash_attn_split<Config, kAppend>>(
        {.grid = {tiles, params.num_splits, std::int64_t{params.b} * params.h},
         .block = {Config::threads},
         .shared_memory = Config::smem_bytes},
        context, params);
    if (result.error != nullptr) return result;
    const std::int64_t rows = std::int64_t{params.b} * params.h * params.seqlen_q;
    return combine<Config>(
        {.grid = {ceil_div(rows, kCombinedRows<Config>)}, .block = {Config::threads}}, context,
        params);
  }
}

}  // namespace kernelmint::flash_attn
