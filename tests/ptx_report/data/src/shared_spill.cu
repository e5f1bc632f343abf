__global__ void __launch_bounds__(256, 1) spiller(const float* q, float* o, int n) {
  asm volatile(".pragma \"enable_smem_spilling\";");
  float acc[400];
#pragma unroll
  for (int i = 0; i < 400; ++i) acc[i] = q[i * 32 + threadIdx.x];
  for (int s = 0; s < n; ++s)
#pragma unroll
    for (int i = 0; i < 400; ++i) acc[i] = acc[i] * acc[(i * 7 + 3) % 400] + q[s + i];
#pragma unroll
  for (int i = 0; i < 400; ++i) o[i * 32 + threadIdx.x] = acc[i];
}
