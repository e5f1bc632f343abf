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

template <class Config, bool kClear, class = Element<typename Config::dtype>>
__global__ void flash_attn_dot_do_o(const ::flash::Flash_bwd_params params) {
  ::flash::compute_dot_do_o<kClear, BackwardTraits<Config>>(params);
}

template <class Config, class = Element<typename Config::dtype>>
__global__ void flash_attn_backward(const __grid_constant__::flash::Flash_bwd_params params) {
  ::flash::compute_dq_dk_dv_seqk_parallel<BackwardTraits<Config>, Config::dropout, Config::causal,
                                          Config::local, Config::alibi, Config::even_mn,
                                          Config::even_k, Config::capped>(params);
}

template <class Config, class = Element<typename Config::dtype>>
__global__ void flash_attn_convert_dq(const ::flash::Flash_bwd_params params, const int parts) {
  ::flash::convert_dQ<BackwardTraits<Config>>(params, parts);
}

// dk and dv of the heads of keys: the sums over the heads of queries that share a head of keys.
template <class Config>
__global__ void flash_attn_sum_groups(const typename Config::Args args) {
  using T = typename Config::dtype;
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t head = i / args.D, column = i % args.D, group = args.H / args.Hk;
  if (head >= args.Bk * args.Sk * args.Hk) return;
  const bool is_k = blockIdx.y == 0;
  const T* parts = static_cast<const T*>(is_k ? args.workspace.dk_parts : args.workspace.dv_parts);
  float sum = 0;
  for (std::int64_t part = head * group; part < (head + 1) * group; ++part)
    sum += static_cast<float>(parts[part * args.D + column]);
  const std::int64_t row = head / args.Hk;
  *(is_k ? args.dk : args.dv).template at<T>(row / args.Sk, row % args.Sk, head % args.Hk, column) =
      static_cast<T>(sum);
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
  const bool is_grouped = args.H != args.Hk;
  if (is_grouped) {
    params.dk_ptr = args.workspace.dk_parts;
    params.dv_ptr = args.workspace.dv_parts;
    params.dk_head_stride = params.dv_head_stride = args.D;
    params.dk_row_stride = params.dv_row_stride = args.H * args.D;
    params.dk_batch_stride = params.dv_batch_stride = args.Sk * args.H * args.D;
  }
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
  result = launch_cuda<&flash_attn::flash_attn_convert_dq<Config>>(by_rows, context, params,
                                                                   static_cast<int>(parts));
  if (result.error != nullptr || !is_grouped) return result;
  const std::int64_t elements = args.Bk * args.Sk * args.Hk * args.D;
  return launch_cuda<&flash_attn::flash_attn_sum_groups<Config>>(
      {.grid = {ceil_div(elements, 256), 2}, .block = {256}}, context, args);
}

}  // namespace kernelmint
