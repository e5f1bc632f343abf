// FlashAttention-2's backward kernels, upstream's device code under names that say its key.
#pragma once

#include <src/flash_bwd_launch_template.h>  // whose kernels are in the order that they need

#include "flash_attn/params.cuh"

namespace kernelmint::flash_attn {

template <class Config>
using BackwardTraits = Flash_bwd_kernel_traits<Config::head_dim, Config::tile_m, Config::tile_n,
                                               Config::warps, Config::atoms_sdp, Config::atoms_dkv,
                                               Config::atoms_dq, Config::v_in_registers,
                                               Config::one_buffer, Element<typename Config::dtype>>;

template <class Config, bool kClear>
__global__ void flash_attn_dot_do_o(const ::flash::Flash_bwd_params params) {
  ::flash::compute_dot_do_o<kClear, BackwardTraits<Config>>(params);
}

template <class Config>
__global__ void flash_attn_backward(const __grid_constant__::flash::Flash_bwd_params params) {
  ::flash::compute_dq_dk_dv_seqk_parallel<BackwardTraits<Config>, Config::dropout, Config::causal,
                                          Config::local, Config::alibi, Config::even_mn,
                                          Config::even_k, Config::capped>(params);
}

template <class Config>
__global__ void flash_attn_convert_dq(const ::flash::Flash_bwd_params params, const int parts) {
  ::flash::convert_dQ<BackwardTraits<Config>>(params, parts);
}

}  // namespace kernelmint::flash_attn

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using Traits = flash_attn::BackwardTraits<Config>;
  static_assert(Traits::kSmemSize1colblock == Config::smem_bytes &&
                Traits::kNThreads == Config::threads);
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  ::flash::Flash_bwd_params params = {};
  flash_attn::set_packed(params, args);
  flash_attn::fill<Config>(params, args, args.out_, args.softmax_lse.data, args.p_dropout);
  flash_attn::set(args.dout, params.do_ptr, params.do_batch_stride, params.do_row_stride,
                  params.do_head_stride);
  flash_attn::set(args.dq, params.dq_ptr, params.dq_batch_stride, params.dq_row_stride,
                  params.dq_head_stride);
  flash_attn::set(args.dk, params.dk_ptr, params.dk_batch_stride, params.dk_row_stride,
                  params.dk_head_stride);
  flash_attn::set(args.dv, params.dv_ptr, params.dv_batch_stride, params.dv_row_stride,
                  params.dv_head_stride);
  params.dsoftmax_sum = args.softmax_d.data;
  params.rng_state = flash_attn::pointer<std::uint64_t>(args.rng_state.data);
  params.deterministic = args.deterministic;

  const std::int64_t parts =
      args.deterministic ? ceil_div(context.facts.sm_count, std::int64_t{params.b} * params.h) : 1;
  const std::int64_t rows = params.unpadded_lse ? args.Sq + 128 * params.b
                                                : std::int64_t{params.b} * params.seqlen_q_rounded;
  params.dq_accum_ptr = args.deterministic ? args.workspace.dq_parts : args.workspace.dq_accum;
  params.dq_accum_split_stride = args.deterministic ? rows * params.h * Config::head_dim : 0;

  CudaLaunch by_rows = {.grid = {ceil_div(params.seqlen_q, Config::tile_m), params.b, params.h},
                        .block = {Config::threads}};
  LaunchResult result =
      args.deterministic
          ? launch_cuda<&flash_attn::flash_attn_dot_do_o<Config, false>>(by_rows, context, params)
          : launch_cuda<&flash_attn::flash_attn_dot_do_o<Config, true>>(by_rows, context, params);
  if (result.error != nullptr) return result;
  const std::int64_t columns =
      args.deterministic ? parts : ceil_div(params.seqlen_k, Config::tile_n);
  result =
      launch_cuda<&flash_attn::flash_attn_backward<Config>>({.grid = {columns, params.b, params.h},
                                                             .block = {Config::threads},
                                                             .shared_memory = Config::smem_bytes},
                                                            context, params);
  if (result.error != nullptr) return result;
  by_rows.shared_memory = Traits::kSmemdQSize;
  return launch_cuda<&flash_attn::flash_attn_convert_dq<Config>>(by_rows, context, params,
                                                                 static_cast<int>(parts));
}

}  // namespace kernelmint
