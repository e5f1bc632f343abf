// The code that the three families share: upstream's parameters, filled as its binding fills them.
#pragma once

#include <cutlass/numeric_types.h>
#include <src/flash.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "cuda_launch.cuh"
#include "dtypes.h"
#include "integers.h"

namespace kernelmint::flash_attn {

// nvcc 13.0 compiles a kernel otherwise if "cutlass" is in its name, as it is in upstream's: so the
// kernels here have an Element among their template arguments, which they do not need.
template <class T>
using Element = std::conditional_t<std::is_same_v<T, bf16>, cutlass::bfloat16_t, cutlass::half_t>;

// Upstream's types know no memory that is only read.
template <class T = void>
T* pointer(const void* data) {
  return static_cast<T*>(const_cast<void*>(data));
}

// A tensor [batch, row, head, column], whose pointer and strides upstream keeps apart.
template <class View>
void set(const View& tensor, void* __restrict__& data, std::int64_t& batch, std::int64_t& row,
         std::int64_t& head) {
  data = pointer(tensor.data);
  batch = tensor.stride[0];
  row = tensor.stride[1];
  head = tensor.stride[2];
}

// The sequences: a batch's, or packed ones.
template <class Args>
void set_packed(::flash::Flash_fwd_params& p, const Args& args) {
  p.cu_seqlens_q = pointer<int>(args.cu_seqlens_q.data);
  p.cu_seqlens_k = pointer<int>(args.cu_seqlens_k.data);
  p.is_seqlens_k_cumulative = true;
  p.unpadded_lse = p.cu_seqlens_q != nullptr;
  p.total_q = static_cast<int>(args.Sq);
  p.b = static_cast<int>(p.unpadded_lse ? args.Cq - 1 : args.B);
}

// The parameters that all passes need; `out` is a pass's output or, backward, the forward pass's
// output.
template <class Config, class Args, class Out>
void fill(::flash::Flash_fwd_params& p, const Args& args, const Out& out, const void* softmax_lse,
          float p_dropout) {
  p.is_bf16 = std::is_same_v<typename Config::dtype, bf16>;
  set(args.q, p.q_ptr, p.q_batch_stride, p.q_row_stride, p.q_head_stride);
  set(args.k, p.k_ptr, p.k_batch_stride, p.k_row_stride, p.k_head_stride);
  set(args.v, p.v_ptr, p.v_batch_stride, p.v_row_stride, p.v_head_stride);
  set(out, p.o_ptr, p.o_batch_stride, p.o_row_stride, p.o_head_stride);
  p.softmax_lse_ptr = pointer(softmax_lse);
  p.h = static_cast<int>(args.H);
  p.h_k = static_cast<int>(args.Hk);
  p.h_h_k_ratio = p.h / p.h_k;
  p.d = static_cast<int>(args.D);
  p.d_rounded = Config::head_dim;
  p.seqlen_q = static_cast<int>(args.max_seqlen_q);
  p.seqlen_k = static_cast<int>(args.max_seqlen_k);
  p.seqlen_q_rounded = ceil_div(p.seqlen_q, 128) * 128;
  p.seqlen_k_rounded = ceil_div(p.seqlen_k, 128) * 128;

  p.softcap = args.softcap > 0 ? args.softmax_scale / args.softcap : 0;
  p.scale_softmax = args.softcap > 0 ? args.softcap : args.softmax_scale;
  p.scale_softmax_log2 = static_cast<float>(p.scale_softmax * M_LOG2E);
  p.p_dropout = 1.f - p_dropout;  // the probability of keeping an element
  p.p_dropout_in_uint8_t = static_cast<std::uint8_t>(std::floor(p.p_dropout * 255.0));
  p.rp_dropout = 1.f / p.p_dropout;
  p.scale_softmax_rp_dropout = p.rp_dropout * p.scale_softmax;

  p.is_causal = Config::causal;
  p.window_size_left = static_cast<int>(args.window_left);
  p.window_size_right = static_cast<int>(args.window_right);
  if (p.window_size_left < 0 && p.window_size_right >= 0) p.window_size_left = p.seqlen_k;
  if (p.window_size_left >= 0 && p.window_size_right < 0) p.window_size_right = p.seqlen_k;
  p.alibi_slopes_ptr = pointer(args.alibi_slopes.data);
  p.alibi_slopes_batch_stride = args.A > 1 ? args.alibi_slopes.stride[0] : 0;
}

}  // namespace kernelmint::flash_attn
