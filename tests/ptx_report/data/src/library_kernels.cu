// Kernels that never name a configuration, as a library's are: each shard launches its own.
#include <cstdint>

namespace library {

template <int kElements>
struct Policy {
  static constexpr int elements = kElements;
};

// Spills where registers are few.
template <class P>
__global__ void multiply(const float* a, const float* b, float* d) {
  float sums[P::elements];
  for (int i = 0; i < P::elements; ++i) sums[i] = a[threadIdx.x * P::elements + i];
  for (int k = 0; k < 64; ++k)
#pragma unroll
    for (int i = 0; i < P::elements; ++i) sums[i] += a[k + i] * b[k * P::elements + i];
  for (int i = 0; i < P::elements; ++i) d[threadIdx.x * P::elements + i] = sums[i];
}

template <class P>
__global__ void reduce(float* d) {
  d[threadIdx.x] += P::elements;
}

}  // namespace library

#if defined(FIRST)
template __global__ void library::multiply<library::Policy<8>>(const float*, const float*, float*);
template __global__ void library::reduce<library::Policy<8>>(float*);
#else
template __global__ void library::multiply<library::Policy<64>>(const float*, const float*, float*);
#endif
