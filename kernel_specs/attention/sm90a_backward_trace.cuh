// The trace of kernels that have none.
#pragma once

namespace kernelmint::attention_backward::sm90a {

struct NoTrace {
  template <class... Values>
  __device__ __forceinline__ void queries(const Values&...) const {}
  template <class... Values>
  __device__ __forceinline__ void gradients(const Values&...) const {}
  template <class... Values>
  __device__ __forceinline__ void scores(const Values&...) const {}
  template <class... Values>
  __device__ __forceinline__ void probabilities(const Values&...) const {}
  template <class... Values>
  __device__ __forceinline__ void score_gradients(const Values&...) const {}
  template <class... Values>
  __device__ __forceinline__ void query_gradients(const Values&...) const {}
  template <class... Values>
  __device__ __forceinline__ void key_gradients(const Values&...) const {}
};

}  // namespace kernelmint::attention_backward::sm90a
