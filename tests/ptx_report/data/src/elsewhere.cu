__device__ float elsewhere(float x) { return x * x + 1; }
__global__ void other(float* p) { p[threadIdx.x] = elsewhere(p[0]); }
