// Two objects and a device link: `nvcc -rdc=true -c`, then `nvcc -dlink`.
extern __device__ float elsewhere(float x);
__global__ void __launch_bounds__(128) linked(float* p) {
  __shared__ float tile[128];
  tile[threadIdx.x] = p[threadIdx.x];
  __syncthreads();
  p[threadIdx.x] = elsewhere(tile[127 - threadIdx.x]);
}
