// A shim of PyTorch's header: the parts that foreign kernels use, without PyTorch.
#pragma once

#if defined(__CUDACC__)
#define C10_HOST __host__
#define C10_DEVICE __device__
#define C10_HOST_DEVICE __host__ __device__
#define C10_LAUNCH_BOUNDS_1(threads) __launch_bounds__(threads)
#define C10_LAUNCH_BOUNDS_2(threads, blocks) __launch_bounds__(threads, blocks)
#define C10_WARP_SIZE 32
#else
#define C10_HOST
#define C10_DEVICE
// A CPU's kernels are compiled once for each instruction set and linked together: inline functions
// that were left as calls could be any instruction set's.
#define C10_HOST_DEVICE __attribute__((always_inline))
#endif
#define C10_ALWAYS_INLINE [[gnu::always_inline]] inline
#define C10_UNUSED [[maybe_unused]]
#define C10_RESTRICT __restrict
#define C10_LIKELY(condition) (__builtin_expect(static_cast<bool>(condition), 1))
#define C10_UNLIKELY(condition) (__builtin_expect(static_cast<bool>(condition), 0))
