// clang-format off
#define CAT(a, b) a##b
#define JOIN(a, b) CAT(a, b)
#define KERNEL(n)                                                                         \
  __global__ void JOIN(NAME, n)(float* p) {                                               \
    float a[n + SHIFT];                                                                   \
    _Pragma("unroll") for (int i = 0; i < n + SHIFT; ++i) a[i] = p[i * 32 + threadIdx.x]; \
    __syncthreads();                                                                      \
    _Pragma("unroll") for (int i = 0; i < n + SHIFT; ++i) p[i * 32 + threadIdx.x] =       \
        a[n + SHIFT - 1 - i];                                                             \
  }
KERNEL(4)
KERNEL(9) KERNEL(14) KERNEL(19) KERNEL(24) KERNEL(29) KERNEL(34) KERNEL(39) KERNEL(44) KERNEL(49)
    KERNEL(54) KERNEL(59)
