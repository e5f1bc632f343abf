#include <torch/extension.h>

#define FACTOR 2

template <class T>
T twice(T x) {
  return FACTOR * x;
}

template float twice(float);

#if defined(__CUDACC__)
__constant__ float zeros[2] = {0.f, 0.f};

__device__ float bias_of(int);
__device__ float bias_of(int i) { return zeros[i] + AXPY_BIAS; }
extern "C" __global__ void fill(float* x) { *x = bias_of(1); }
#endif

__attribute__((noinline)) bool has_avx2() {
#if defined(__AVX2__)
  return true;
#else
  return false;
#endif
}

torch::Tensor doubled(torch::Tensor x) { return twice(x); }
