__constant__ float table[100];
__device__ int counter;

__device__ __noinline__ float looked_up(float x, int n) {
  float a[8];
  for (int i = 0; i < 8; ++i) a[i] = x * i;
  return a[n & 7] + table[n % 100];
}

template <int N, class T>
__global__ void reduced(T* p, int n) {  // a stack, shared memory, constants, a barrier
  __shared__ T s[N];
  s[threadIdx.x % N] = p[threadIdx.x];
  __syncthreads();
  T a[16];
  for (int i = 0; i < 16; ++i) a[i] = p[i];
  a[n & 15] = 3;
  T sum = 0;
  for (int i = 0; i < 16; ++i) sum += a[i] * s[i % N];
  p[threadIdx.x] = sum + looked_up(sum, n);
  atomicAdd(&counter, 1);
}

template __global__ void reduced<32, float>(float*, int);
template __global__ void reduced<64, float>(float*, int);
template __global__ void reduced<64, double>(double*, int);

extern "C" __global__ void plain(float* p) { p[threadIdx.x] = 1; }
