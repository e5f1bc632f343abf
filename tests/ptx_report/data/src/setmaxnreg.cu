// A consumer that asks for registers, but for one architecture that the condition forgets.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(__CUDA_ARCH_FEAT_SM120_ALL)
#define RECONFIGURES 1
#endif

template <int N>
__global__ void __launch_bounds__(384, 1) consume(const float* in, float* out, int steps) {
  if (threadIdx.x < 128) {
#ifdef RECONFIGURES
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
#endif
    if (threadIdx.x == 0) out[0] = in[0];
    return;
  }
#ifdef RECONFIGURES
  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
#endif
  float sums[N];
#pragma unroll
  for (int i = 0; i < N; ++i) sums[i] = in[i * 384 + threadIdx.x];
  for (int step = 0; step < steps; ++step) {
#pragma unroll
    for (int i = 0; i < N; ++i) sums[i] = sums[i] * sums[(i * 7 + 3) % N] + in[step];
  }
#pragma unroll
  for (int i = 0; i < N; ++i) out[i * 384 + threadIdx.x] = sums[i];
}

template __global__ void consume<8>(const float*, float*, int);
template __global__ void consume<96>(const float*, float*, int);
template __global__ void consume<200>(const float*, float*, int);

__global__ void local_array(float* out, int n) {  // a stack on each architecture
  float a[64];
  for (int i = 0; i < 64; ++i) a[i] = out[i];
  a[n & 63] = 1;
  float sum = 0;
  for (int i = 0; i < 64; ++i) sum += a[(i * n) & 63];
  out[threadIdx.x] = sum;
}
