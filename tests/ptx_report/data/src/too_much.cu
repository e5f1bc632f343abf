// Fails in ptxas: 64 KiB of static shared memory.
__global__ void fits(float* p) { p[threadIdx.x] *= 2; }
__global__ void too_much(float* p) {
  __shared__ float tile[16384];
  tile[threadIdx.x] = p[threadIdx.x];
  __syncthreads();
  p[threadIdx.x] = tile[1023 - threadIdx.x];
}
