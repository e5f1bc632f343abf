#include <cstdio>
namespace kernelmint::flash_forward {
struct Args {
  const float* q;
  float* o;
  int n;
};
}  // namespace kernelmint::flash_forward
namespace kernelmint::configs::flash_forward::sm80 {
struct bf16_d128_causal_r64_c64_w4 {
  using Args = kernelmint::flash_forward::Args;
  static constexpr int n = 4;
};
struct bf16_d64_r64_c64_w4 {
  using Args = kernelmint::flash_forward::Args;
  static constexpr int n = 96;
};
}  // namespace kernelmint::configs::flash_forward::sm80
namespace kernelmint::flash_forward {
template <class C>
__global__ void flash_forward_sm80(const typename C::Args args) {
  __shared__ float tile[1024];
  float acc[C::n];
  for (int i = 0; i < C::n; ++i) acc[i] = args.q[i * 32 + threadIdx.x];
  tile[threadIdx.x] = acc[0];
  __syncthreads();
  for (int s = 0; s < args.n; ++s)
#pragma unroll
    for (int i = 0; i < C::n; ++i) acc[i] = acc[i] * acc[(i * 7 + 3) % C::n] + tile[(s + i) & 1023];
  for (int i = 0; i < C::n; ++i) args.o[i * 32 + threadIdx.x] = acc[i];
}
template __global__ void
flash_forward_sm80<configs::flash_forward::sm80::bf16_d128_causal_r64_c64_w4>(const Args);
template __global__ void flash_forward_sm80<configs::flash_forward::sm80::bf16_d64_r64_c64_w4>(
    const Args);
}  // namespace kernelmint::flash_forward
namespace {
__global__ void hidden(float* p) { p[threadIdx.x] *= 2; }
}  // namespace
__device__ __noinline__ float helper(const float* p, int n) {
  float a = 0;
  for (int i = 0; i < n; ++i) a += p[i] * p[i + 1];
  return a;
}
__device__ __noinline__ float rec(const float* p, int n) {
  return n < 2 ? p[0] : rec(p, n - 1) + rec(p + 1, n - 2);
}
extern "C" __global__ void plain_c(float* p, int n) { p[threadIdx.x] = helper(p, n); }
__global__ void recurses(float* p, int n) { p[threadIdx.x] = rec(p, n); }
__global__ void __launch_bounds__(128, 2) empty() {}
void use() { hidden<<<1, 1>>>(nullptr); }
