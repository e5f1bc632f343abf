// Words that an excerpt of a foreign file has around its definitions, so that every file of a
// library may include the excerpt: codegen/sources/excerpts.py.
#pragma once

// On the CPU a library holds each definition once for every instruction set, by names of its own.
#if defined(KERNELMINT_ISA)
#define KERNELMINT_ISA_BEGIN inline namespace KERNELMINT_ISA {
#define KERNELMINT_ISA_END }
#else
#define KERNELMINT_ISA_BEGIN
#define KERNELMINT_ISA_END
#endif

// A function that is not a template. Device code has no such word, which could change what nvcc
// inlines.
#if defined(__CUDA_ARCH__)
#define KERNELMINT_INLINE
#else
#define KERNELMINT_INLINE inline
#endif
