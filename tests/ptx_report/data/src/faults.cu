// Small kernels whose machine code test_machine_code.py alters: a loop with a call, and a product
// with its left operand in registers.
#include <cstdint>

__device__ __noinline__ float scaled(float x, int n) {
  float sum = 0;
#pragma unroll 1
  for (int i = 0; i < n; ++i) sum += x * i;
  return sum;
}

extern "C" __global__ void walk(float* out, const float* in, int n, int steps) {
  __shared__ float tile[128];
  float sum = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    tile[threadIdx.x] = in[step * n + threadIdx.x];
    __syncthreads();
    if (tile[threadIdx.x ^ 1] > 1) sum += scaled(tile[threadIdx.x ^ 2], n);
    __syncthreads();
  }
  out[blockIdx.x * n + threadIdx.x] = sum;
}

#if __CUDA_ARCH__ == 900 && defined __CUDA_ARCH_FEAT_SM90_ALL
extern "C" __global__ void product(float* out, const uint4* in, uint64_t right, int steps) {
  float sum[4] = {};
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    uint4 left = in[step * 128 + threadIdx.x];
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "%8, 1, 1, 1, 0;"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(left.x), "r"(left.y), "r"(left.z), "r"(left.w), "l"(right));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  }
  for (int i = 0; i < 4; ++i) out[i * 128 + threadIdx.x] = sum[i];
}
#endif
