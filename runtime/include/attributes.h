// Attributes of functions, in the words of each compiler.
#pragma once

#if defined(__CUDACC__)
#define KERNELMINT_HOST_DEVICE __host__ __device__
#else
#define KERNELMINT_HOST_DEVICE
#endif

// Leaves no copy, which a translation unit for one instruction set might lend another.
#define KERNELMINT_ALWAYS_INLINE [[gnu::always_inline]] inline
